//! The journal: lines on stderr, with the priority prefix systemd understands (sd-daemon(3)).

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::os::block_all_signals;

/// `--log-format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Sends our own lines to stderr. Libraries are silenced: kube logs whole bodies on a decoding
/// error, which could hold what must not be in a journal.
pub(crate) fn init(format: Format) {
    init_with(format, std::io::stderr);
}

/// The same from a thread of its own, which waits for a slow journal: the caller waits for nobody. What does not fit into the
/// queue is lost.
pub(crate) fn init_detached(format: Format) {
    init_with(format, || Detached);
}

/// Lines on their way to a slow journal, at the most.
const QUEUE: usize = 64;

/// What is written and not passed on yet.
static PENDING: AtomicUsize = AtomicUsize::new(0);

struct Detached;

impl Write for Detached {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        static LINES: OnceLock<Option<SyncSender<Vec<u8>>>> = OnceLock::new();
        let start = || {
            let (lines, queue) = sync_channel::<Vec<u8>>(QUEUE);
            let pass_on = move || {
                block_all_signals();
                for line in queue {
                    let _ = io::stderr().write_all(&line);
                    PENDING.fetch_sub(1, SeqCst);
                }
            };
            std::thread::Builder::new().name("log".to_owned()).stack_size(64 << 10).spawn(pass_on).ok().map(|_| lines)
        };
        let Some(lines) = LINES.get_or_init(start) else { return io::stderr().write(line) };
        PENDING.fetch_add(1, SeqCst);
        if lines.try_send(line.to_vec()).is_err() {
            PENDING.fetch_sub(1, SeqCst);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Before the end: waits for what is on its way, a second at the most.
pub(crate) fn flush() {
    for _ in 0..1000 {
        if PENDING.load(SeqCst) == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn init_with<W: Write + 'static>(format: Format, writer: fn() -> W) {
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    // A second initialisation (in tests) is harmless.
    let _ = tracing::subscriber::set_global_default(Lines { format, journal, writer });
}

/// Makes a line of each event of ours, and of nothing else. tracing-subscriber does so with a registry of spans, of which we
/// have none: it was 35 kB of the monitor.
struct Lines<W> {
    format: Format,
    journal: bool,
    writer: fn() -> W,
}

impl<W> Lines<W> {
    fn line(&self, event: &Event<'_>) -> String {
        let (priority, name) = match *event.metadata().level() {
            Level::ERROR => (3, "error"),
            Level::WARN => (4, "warning"),
            Level::INFO => (6, "info"),
            _ => (7, "debug"),
        };
        let mut message = Message::default();
        event.record(&mut message);
        let priority = if self.journal { format!("<{priority}>") } else { String::new() };
        match self.format {
            Format::Text => format!("{priority}kubelet-supervisor: {}\n", message.0.replace('\n', " ")),
            Format::Json => {
                let mut record = Map::new();
                record.insert("ts".to_owned(), Value::from(jiff::Timestamp::now().to_string()));
                record.insert("level".to_owned(), Value::from(name));
                record.insert("msg".to_owned(), Value::from(message.0));
                format!("{priority}{}\n", Value::Object(record))
            }
        }
    }
}

impl<W: Write + 'static> Subscriber for Lines<W> {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        of.is_event() && *of.level() <= Level::INFO && of.target().starts_with("kubelet_supervisor")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        let _ = (self.writer)().write_all(self.line(event).as_bytes()); // there is nowhere to say why
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1) // none is enabled
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

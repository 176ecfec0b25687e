//! The journal: lines on stderr, with the priority prefix systemd understands (sd-daemon(3)).

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

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

fn init_with<W: for<'a> MakeWriter<'a> + Send + Sync + 'static>(format: Format, writer: W) {
    let own = Targets::new().with_target("kubelet_supervisor", Level::INFO);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .event_format(Lines { format, journal: std::env::var_os("JOURNAL_STREAM").is_some() });
    // A second initialisation (in tests) is harmless.
    let _ = tracing_subscriber::registry().with(own).with(lines).try_init();
}

struct Lines {
    format: Format,
    journal: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (priority, name) = match *event.metadata().level() {
            Level::ERROR => (3, "error"),
            Level::WARN => (4, "warning"),
            Level::INFO => (6, "info"),
            _ => (7, "debug"),
        };
        let mut message = Message::default();
        event.record(&mut message);
        if self.journal {
            write!(writer, "<{priority}>")?;
        }
        match self.format {
            Format::Text => writeln!(writer, "kubelet-supervisor: {}", message.0.replace('\n', " ")),
            Format::Json => {
                let mut record = Map::new();
                record.insert("ts".to_owned(), Value::from(jiff::Timestamp::now().to_string()));
                record.insert("level".to_owned(), Value::from(name));
                record.insert("msg".to_owned(), Value::from(message.0));
                writeln!(writer, "{}", Value::Object(record))
            }
        }
    }
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

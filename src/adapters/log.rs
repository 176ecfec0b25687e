//! The journal: lines on stderr, with the priority prefix systemd understands (sd-daemon(3)).

use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

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
    let own = Targets::new().with_target("kubelet_supervisor", Level::INFO);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
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

//! Streams through the kubelet: of `kubectl exec` and `port-forward`, which end by themselves, and of `logs -f`.

use std::io::{BufRead as _, BufReader, Read};
use std::net::TcpStream;
use std::process::Child;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Result;
use crate::cluster::Cluster;
use crate::workload::{FIRST, TICKING_PORT, TICKS};

/// A stream that does not begin in that time, or neither ends nor is cut, hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Said in the place of `logs` where there are none: another kubelet on this machine deletes what it does not know in /var/log/pods.
pub const NO_LOGS: &str = "(no logs to follow)";

pub struct Stream {
    name: &'static str,
    /// Ends by itself, with the word `whole`.
    is_bounded: bool,
    /// Of `kubectl`, which does not outlive its stream: the supervisor counts it for as long as it is there.
    client: u32,
    /// What came, once that is all.
    reader: JoinHandle<String>,
}

/// Opens one of each.
pub fn open(cluster: &Cluster) -> Result<Vec<Stream>> {
    let mut streams = vec![logs(cluster)?, exec(cluster)?, port_forward(cluster)?];
    for stream in streams.iter_mut().filter(|stream| stream.reader.is_finished()) {
        if stream.is_bounded {
            return Err(format!("{} ended before the change", stream.name).into());
        }
        stream.name = NO_LOGS;
    }
    Ok(streams)
}

fn logs(cluster: &Cluster) -> Result<Stream> {
    let mut client = cluster.kubectl(&["logs", "-f", FIRST])?.spawn()?;
    let output = client.stdout.take().ok_or("no output")?;
    Stream::begin("logs", false, client, output)
}

fn exec(cluster: &Cluster) -> Result<Stream> {
    let mut client = cluster.kubectl(&["exec", FIRST, "--", "sh", "-c", TICKS])?.spawn()?;
    let output = client.stdout.take().ok_or("no output")?;
    Stream::begin("exec", true, client, output)
}

fn port_forward(cluster: &Cluster) -> Result<Stream> {
    let mut client = cluster.kubectl(&["port-forward", FIRST, &format!(":{TICKING_PORT}")])?.spawn()?;
    let mut line = String::new();
    let mut output = BufReader::new(client.stdout.take().ok_or("no output")?);
    output.read_line(&mut line)?;
    let words: Vec<&str> = line.split([':', ' ']).collect();
    let port =
        words.iter().skip_while(|word| **word != "127.0.0.1").nth(1).ok_or_else(|| format!("no port: {line}"))?;
    let connection = TcpStream::connect(("127.0.0.1", port.parse()?))?;
    // It says more of each connection, and must not be stopped by a pipe without a reader.
    std::thread::Builder::new().spawn(move || std::io::copy(&mut output, &mut std::io::sink()))?;
    Stream::begin("port-forward", true, client, connection)
}

impl Stream {
    fn begin(name: &'static str, is_bounded: bool, client: Child, input: impl Read + Send + 'static) -> Result<Self> {
        let (pid, mut client) = (client.id(), client);
        let (mut input, (sender, first)) = (BufReader::new(input), channel());
        let reader = std::thread::Builder::new().spawn(move || {
            let mut text = Vec::new();
            let _ = input.read_until(b'\n', &mut text);
            let _ = sender.send(());
            let _ = input.read_to_end(&mut text); // what is cut ends in an error, or in nothing
            let _ = client.kill();
            let _ = client.wait();
            String::from_utf8_lossy(&text).into_owned()
        })?;
        // A log may be empty.
        if is_bounded && first.recv_timeout(PATIENCE).is_err() {
            let _ = kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL);
            return Err(format!("{name} does not begin").into());
        }
        Ok(Self { name, is_bounded, client: pid, reader })
    }

    /// Its name, if it ended before its time.
    fn cut(self) -> Option<&'static str> {
        let begun = Instant::now();
        while self.is_bounded && !self.reader.is_finished() && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(50));
        }
        let has_ended = self.reader.is_finished();
        if let (false, Ok(pid)) = (has_ended, i32::try_from(self.client)) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let text = self.reader.join().unwrap_or_default();
        let is_cut = if self.is_bounded { !text.ends_with("whole\n") } else { has_ended };
        is_cut.then_some(self.name)
    }
}

/// Names of those that ended before their time; the others are at their end then.
pub fn cut(streams: Vec<Stream>) -> Vec<&'static str> {
    streams.into_iter().filter_map(Stream::cut).collect()
}

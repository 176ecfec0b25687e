//! Watches on the API server, for as long as the benchmark runs.

use std::io::{BufRead as _, BufReader};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::interrupt::is_interrupted;

use crate::Result;
use crate::cluster::Cluster;
use crate::tally::{Resource, Tally};

/// No number comes of it; this only ends a wait that would last for ever.
const PATIENCE: Duration = Duration::from_secs(600);

const WATCHED: [(Resource, &str); 5] = [
    (Resource::Node, "/api/v1/nodes"),
    (Resource::Pod, "/api/v1/namespaces/default/pods"),
    (Resource::Endpoints, "/api/v1/namespaces/default/endpoints"),
    (Resource::EndpointSlice, "/apis/discovery.k8s.io/v1beta1/namespaces/default/endpointslices"),
    (Resource::Event, "/api/v1/namespaces/default/events"),
];

/// An event of a watch, or its end.
type Seen = (Resource, Instant, Option<Value>);

pub struct Observer {
    watches: Vec<Child>,
    seen: Receiver<Seen>,
    pub tally: Tally,
}

impl Observer {
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let (sender, seen) = channel();
        let mut observer = Self { watches: Vec::new(), seen, tally: Tally::new() };
        for (resource, path) in WATCHED {
            let mut curl = cluster.curl(&format!("{path}?watch=1&timeoutSeconds=86400"))?;
            observer.watches.push(watch(curl.arg("-N").spawn()?, resource, sender.clone())?);
        }
        Ok(observer)
    }

    /// Follows the watches until that is so.
    pub fn until(&mut self, what: &str, mut is_done: impl FnMut(&Tally) -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        while !is_done(&self.tally)? {
            if is_interrupted() {
                return Err(format!("interrupted while waiting for {what}").into());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("gave up waiting for {what}").into());
            }
            match self.seen.recv_timeout(Duration::from_millis(100)) {
                Ok((resource, at, Some(event))) => self.tally.note(resource, at, &event),
                Ok((resource, _, None)) => return Err(format!("the watch of {resource:?} ended").into()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err("no watch is left".into()),
            }
        }
        Ok(())
    }

    /// Until the kubelet that runs now and so many pods have come to rest.
    pub fn until_calm(&mut self, pods: usize) -> Result<()> {
        self.until(&format!("{pods} pods to come to rest"), |tally| Ok(tally.is_calm(pods)))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        for watch in &mut self.watches {
            let _ = watch.kill();
            let _ = watch.wait();
        }
    }
}

fn watch(mut curl: Child, resource: Resource, sender: Sender<Seen>) -> Result<Child> {
    let lines = BufReader::new(curl.stdout.take().ok_or("no output")?).lines();
    std::thread::Builder::new().spawn(move || {
        for line in lines.map_while(std::io::Result::ok) {
            let event = serde_json::from_str(&line).ok();
            let is_over = event.is_none() || sender.send((resource, Instant::now(), event)).is_err();
            if is_over {
                break;
            }
        }
        let _ = sender.send((resource, Instant::now(), None));
    })?;
    Ok(curl)
}

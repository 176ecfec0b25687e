//! The local files as the source of configuration, where nothing else is assigned: `--follow-local`.
//!
//! It sends the input that the cluster's adapter would send for a ConfigMap. All else goes on to that adapter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use super::LocalFiles;
use crate::machine::Input;
use crate::ports::{self, ClusterRequest, Local as _, LocalError};
use kubelet_config::duration::backoff;
use kubelet_config::local_files;
use kubelet_config::rendering::Text;
use kubelet_config::source::{ConfigMapRef, Payload};

/// Files that are being written, or that others can change, are looked at again after this long, and then after up to
/// [`AGAIN_MAX`].
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(10);

/// Looks at files that are being written before the journal says so.
const PATIENCE: u32 = 4;

pub(crate) struct LocalSource {
    files: LocalFiles,
    inputs: UnboundedSender<Input>,
    cluster: Box<dyn ports::Cluster>,
    /// The latest question: what answers an earlier one is dropped.
    asked: Arc<AtomicU64>,
}

impl LocalSource {
    pub(crate) fn new(files: LocalFiles, inputs: UnboundedSender<Input>, cluster: Box<dyn ports::Cluster>) -> Self {
        Self { files, inputs, cluster, asked: Arc::default() }
    }

    /// Reads them on the blocking pool, as a disk may stall, and once they are whole.
    fn send(&self, number: u64) {
        let (files, inputs, asked) = (self.files.clone(), self.inputs.clone(), self.asked.clone());
        tokio::spawn(async move {
            let mut told = String::new();
            for looks in 0.. {
                let files = files.clone();
                let Ok(found) = tokio::task::spawn_blocking(move || payload(&files)).await else { return };
                if asked.load(Ordering::SeqCst) != number {
                    return;
                }
                match found {
                    Ok(payload) => return drop(inputs.send(Input::ConfigMap(Arc::new(payload)))),
                    Err(LocalError::Unfinished(why)) if looks == PATIENCE => {
                        tracing::info!("{why}; it is taken up when that has ended");
                    }
                    Err(LocalError::Unfinished(_)) => {}
                    Err(LocalError::Unsafe(why)) => {
                        if why != told {
                            told.clone_from(&why);
                            drop(inputs.send(Input::ConfigMapFailed { why, definite: true }));
                        }
                    }
                    Err(error) => {
                        return drop(inputs.send(Input::ConfigMapFailed { why: error.to_string(), definite: true }));
                    }
                }
                tokio::time::sleep(backoff(AGAIN, AGAIN_MAX, looks)).await;
            }
        });
    }
}

/// Each state of them is a version.
fn payload(files: &LocalFiles) -> Result<Payload, LocalError> {
    ports::read_whole(files, || {
        let drop_ins = files.drop_ins()?;
        let (text, dir) = files.config()?.unwrap_or_default();
        Ok(local_files::payload(Text { text: &text, dir: &dir }, &drop_ins))
    })
}

impl ports::Cluster for LocalSource {
    fn submit(&mut self, request: ClusterRequest) {
        let ClusterRequest::Watch(map) = request else { return self.cluster.submit(request) };
        let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let own = map.as_ref().is_some_and(ConfigMapRef::is_local_files);
        self.cluster.submit(ClusterRequest::Watch(map.filter(|_| !own)));
        if own {
            self.send(number);
        }
    }
}

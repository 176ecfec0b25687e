//! Kubelets of other versions that root has put on the node (`--kubelet-versions-dir`), as judges of what an upgrade would
//! make of a configuration. They are never started as the node's kubelet.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::adapters::ownership;
use kubelet_config::bounds;
use kubelet_config::kubelet_version::KubeletVersion;

/// Bytes of what a binary calls itself.
const SHOWN: usize = 64;

/// The binary of this version, which nobody but root can have put there.
///
/// # Errors
/// Why the node has none that can be used.
pub(super) async fn find(dir: Option<PathBuf>, asked: &KubeletVersion) -> Result<PathBuf, String> {
    let Some(dir) = dir else {
        return Err(format!("no kubelet {asked} on this node: its supervisor runs without --kubelet-versions-dir"));
    };
    let (program, version) = (dir.join(asked.as_str()).join("kubelet"), asked.clone());
    let checked = tokio::task::spawn_blocking(move || check(&program, &version).map(|()| program)); // the disk may stall
    checked.await.map_err(|error| format!("the kubelet {asked} on this node cannot be looked at: {error}"))?
}

fn check(program: &Path, asked: &KubeletVersion) -> Result<(), String> {
    let unusable = |why: String| format!("the kubelet {asked} on this node is not used: {why}");
    ownership::check(program).map_err(|error| unusable(error.to_string()))?;
    match std::fs::metadata(program) {
        Ok(meta) if meta.is_file() => Ok(()),
        Ok(_) => Err(unusable(format!("{} is not a file", program.display()))),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(format!("no kubelet {asked} on this node: {} does not exist", program.display()))
        }
        Err(error) => Err(unusable(format!("{}: {error}", program.display()))),
    }
}

/// Checks what the binary says of itself.
///
/// # Errors
/// It is another, or says nothing.
pub(super) fn check_version(program: &Path, asked: &KubeletVersion, said: Option<&str>) -> Result<(), String> {
    let why = match said {
        Some(said) if said == asked.as_str() => return Ok(()),
        Some(said) => format!("says {:?}", bounds::bounded(said, SHOWN)),
        None => "gives no answer".to_owned(),
    };
    Err(format!("{} is no kubelet {asked}: its --version {why}; put the right file there", program.display()))
}

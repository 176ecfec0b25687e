//! The real API server, etcd and containerd of `tests/real/cluster.sh`.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Result;
use crate::world::NODE;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Taken down when it is dropped.
pub struct Cluster {
    pub dir: PathBuf,
    proxy: Option<Child>,
    _temporary: tempfile::TempDir,
}

impl Cluster {
    pub fn up() -> Result<Self> {
        let temporary = tempfile::Builder::new().prefix("bench").tempdir_in("/tmp")?;
        let cluster = Self { dir: temporary.path().to_owned(), proxy: None, _temporary: temporary };
        cluster.script("up")?;
        let manifests = Path::new(ROOT).join("packaging/manifests/base");
        output(cluster.kubectl(&["apply", "-k"]).arg(manifests))?;
        Ok(cluster)
    }

    /// The kubelet and its arguments.
    pub fn kubelet(&self) -> Result<(String, Vec<String>)> {
        let text = self.script("kubelet-args")?;
        let mut words = text.lines().map(str::to_owned);
        Ok((words.next().ok_or("no kubelet")?, words.collect()))
    }

    /// Its port; plain HTTP, so that a request costs a millisecond.
    pub fn start_proxy(&mut self) -> Result<u16> {
        let proxy = self.kubectl(&["proxy", "--port=0"]).stdout(Stdio::piped()).spawn()?;
        let proxy = self.proxy.insert(proxy);
        let mut line = String::new();
        BufReader::new(proxy.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
        Ok(line.trim().rsplit(':').next().ok_or("no port")?.parse()?)
    }

    fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(args).env("KUBECONFIG", self.dir.join("admin.kubeconfig"));
        command
    }

    /// A verb of `cluster.sh`.
    fn script(&self, verb: &str) -> Result<String> {
        let script = Path::new(ROOT).join("tests/real/cluster.sh");
        output(Command::new(script).arg(verb).arg(&self.dir).env("NODE_NAME", NODE))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(proxy) = &mut self.proxy {
            let _ = proxy.kill();
            let _ = proxy.wait();
        }
        let _ = self.script("down");
    }
}

/// What a command prints.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

//! The kubectl plugin as a user runs it, against the tests' own API server.
#![cfg(test)]

mod assign;
mod compare;
mod complete;
mod doctor;
mod hostile_nodes;
mod krew;
mod mistakes;
mod pools;
mod preflight;
mod push;
mod read;
mod status;
mod terminal;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use testkit::api_server::ApiServer;
use testkit::built::given;

const NODE: &str = "n1";
const HEAD: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";

/// A cluster with one Node, a directory, and the user's kubeconfig.
struct Bench {
    server: ApiServer,
    dir: tempfile::TempDir,
}

/// What came of a command.
#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Ran {
    /// It ended with this code, and said all of this on standard error.
    fn ends(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{words:?}: {self:#?}");
        for word in words {
            assert!(self.err.contains(word), "{word}: {self:#?}");
        }
    }

    fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:#?}");
        self.out
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

impl Bench {
    fn new() -> Self {
        let server = ApiServer::start();
        server.create_node(NODE);
        let dir = tempfile::tempdir().unwrap();
        server.write_kubeconfig(dir.path().join("kubeconfig"));
        Self { server, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file in the directory; its path as text.
    fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    /// As a user would start it, with nothing on standard input.
    fn command(&self, args: &[&str]) -> Command {
        command(&self.path("kubeconfig"), args)
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, "")
    }

    /// In the directory, with this on standard input.
    fn run_with(&self, args: &[&str], input: &str) -> Ran {
        run(&self.path("kubeconfig"), self.dir.path(), args, input)
    }
}

/// A controller that runs, until it is told to stop.
struct Controller(Child);

impl Controller {
    fn start(bench: &Bench) -> Self {
        Self(bench.command(&["controller"]).stderr(Stdio::null()).spawn().unwrap())
    }

    fn stop(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(kubeconfig: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-kubelet_config"));
    command.args(args).env("KUBECONFIG", kubeconfig).env_remove("KUBERNETES_SERVICE_HOST").stdin(Stdio::null());
    command
}

fn run(kubeconfig: &Path, dir: &Path, args: &[&str], input: &str) -> Ran {
    let mut command = command(kubeconfig, args);
    let output = given(command.current_dir(dir), input);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

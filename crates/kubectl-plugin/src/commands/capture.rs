//! `capture`: what a kubelet runs with, as a file.

use clap::Args;
use serde_json::Value;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::api::client::Client;
use crate::api::nodes;
use crate::commands::configuration::{self, InForce};
use crate::fleet::node::NodeRow;
use crate::{Context, Failure, output};
use kubelet_config::{effective, hazard, schema};

/// Options of `capture`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The node, as NODE or node/NODE.
    #[arg(value_name = "NODE")]
    node: String,
    /// File to write, which only you can read; `-`: standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Write the flag overrides of the ConfigMap that the node runs into this file; /configz has those that are fields.
    #[arg(long, value_name = "FILE")]
    flags: Option<PathBuf>,
    /// Overwrite files that are there.
    #[arg(long)]
    force: bool,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<(), Failure> {
        let node = nodes::bare_name(&self.node);
        let to_stdout = self.output.as_os_str() == "-";
        for path in self.flags.iter().chain((!to_stdout).then_some(&self.output)) {
            if !self.force && path.symlink_metadata().is_ok() {
                return Err(Failure::new(format!("{}: there already; --force replaces it", path.display())));
            }
        }
        if let Some(path) = &self.flags {
            let text = flags(&context.api(), node).await?;
            write(path, &text, self.force)?;
        }
        let mut value = configuration::running(&context.api(), node).await?;
        // Of a distribution's own kubelet: no other would read them.
        for line in schema::messages(&schema::problems(&value), None) {
            eprintln!("warning: {}", output::plain(&line));
        }
        if to_stdout {
            if std::io::stdout().is_terminal() && mask(&mut value) {
                eprintln!("note: credentials are masked on a terminal; -o FILE has them");
            }
            return output::write_stdout(&text(node, &value)?);
        }
        write(&self.output, &text(node, &value)?, self.force)?;
        output::write_stdout(&format!("node/{node} captured to {}\n", output::plain(&self.output.to_string_lossy())))
    }
}

/// The flag overrides of the ConfigMap that the node runs, as `push --flags` reads them.
async fn flags(client: &Client, node: &str) -> Result<String, Failure> {
    let row = NodeRow::from_node(&nodes::get(client, node).await?, &client.namespace);
    let (title, lines) = match configuration::in_force(client, &row).await {
        None => (format!("node {node} runs its own configuration"), Vec::new()),
        Some(InForce { title, map: Some(map), .. }) => (format!("ConfigMap {title}"), map.overrides.lines()),
        Some(InForce { notes, .. }) => return Err(Failure::new(notes.join("; "))),
    };
    Ok(format!("# Flag overrides that the kubelet of node {node} ran with: {title}.\n{}\n", lines.join("\n")))
}

/// Kind and version first, as people write it; no time, so that the same is the same.
fn text(node: &str, value: &Value) -> Result<String, Failure> {
    let mut rest = value.clone();
    let mut head = format!("# What the kubelet of node {node} ran with, from its /configz.\n");
    if effective::chose_certificate(value) && effective::drop_certificate(&mut rest) {
        head += "# Left out: tlsCertFile and tlsPrivateKeyFile. The kubelet chose them itself at its start.\n";
    }
    for field in ["apiVersion", "kind"] {
        if let Some(Value::String(word)) = rest.as_object_mut().and_then(|fields| fields.remove(field)) {
            head = format!("{head}{field}: {word}\n");
        }
    }
    let body = serde_yaml::to_string(&rest)
        .map_err(|error| Failure::new(format!("the configuration cannot be written as YAML: {error}")))?;
    Ok(if rest.as_object().is_none_or(serde_json::Map::is_empty) { head } else { head + &body })
}

/// True if there was something to mask.
fn mask(value: &mut Value) -> bool {
    let mut found = false;
    for (field, value) in value.as_object_mut().into_iter().flatten() {
        if hazard::is_secret(field) && !value.is_null() && value != "" {
            *value = "(masked)".into();
            found = true;
        }
    }
    found
}

/// Whole or not at all: what another reads meanwhile is never half.
fn write(path: &Path, text: &str, replace: bool) -> Result<(), Failure> {
    let create = |path: &Path| {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    };
    let done = if replace {
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}.tmp", std::process::id()));
        let beside = PathBuf::from(beside);
        let done = create(&beside).and_then(|()| std::fs::rename(&beside, path));
        done.inspect_err(|_| drop(std::fs::remove_file(&beside)))
    } else {
        create(path)
    };
    done.map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Pushed, they would be somebody's setting, which shipped policies deny.
    #[test]
    fn a_certificate_that_the_kubelet_chose_is_left_out() {
        let value = json!({"kind": "K", "maxPods": 1, "tlsCertFile": "/var/lib/kubelet/pki/kubelet.crt", "tlsPrivateKeyFile": "/var/lib/kubelet/pki/kubelet.key"});
        let chosen = text("n", &value).unwrap();
        assert!(chosen.contains("# Left out: tlsCertFile") && chosen.ends_with("kind: K\nmaxPods: 1\n"), "{chosen}");
        let named = text("n", &json!({"tlsCertFile": "/p/a.crt", "tlsPrivateKeyFile": "/p/a.key"})).unwrap();
        assert!(named.contains("tlsCertFile: /p/a.crt") && !named.contains("Left out"), "{named}");
    }

    #[test]
    fn credentials_are_masked() {
        let mut value = json!({"staticPodURLHeader": {"Authorization": ["Bearer x"]}, "maxPods": 1});
        assert!(mask(&mut value));
        assert!(!value.to_string().contains("Bearer"));
        assert!(!mask(&mut json!({"maxPods": 1, "staticPodURL": ""})));
    }
}

//! `policy check`, and the policies that `enable --policy` installs.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::common::Failure;
use crate::adapters::clock::BootClock;
use crate::adapters::{policy, systemctl};
use crate::daemon::admission::Policy;
use crate::machine::model::RenderError;
use crate::os::ownership;
use crate::ports::Clock as _;
use kubelet_config::policy::{Admission, DEFAULT_PATH, NodePolicy};

/// Policies that come with the program.
const SHIPPED: [(&str, &str); 2] = [
    ("baseline", include_str!("../../packaging/policy/baseline.yaml")),
    ("strict", include_str!("../../packaging/policy/strict.yaml")),
];

/// Seconds in which another key can be brought to all nodes: 30 days.
const ENDS_SOON: u64 = 30 * 24 * 3600;

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Read a policy and say what it means: exit 0 if it can be used, 1 if not.
    Check {
        /// A NodePolicy [default: the node's own, /etc/kubelet-supervisor/policy.yaml]
        file: Option<PathBuf>,
    },
}

pub(super) fn run(options: &Options) -> Result<u8, Failure> {
    let Verb::Check { file } = &options.verb;
    let (file, is_own) = (file.as_deref().unwrap_or(Path::new(DEFAULT_PATH)), file.is_none());
    let path = file.display();
    let policy = if is_own {
        policy::read(file)?.ok_or_else(|| {
            format!("{path}: this node has no policy: `kubelet-supervisor enable --policy baseline` installs one")
        })?
    } else {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{path}: {error}"))?;
        if let Err(why) = ownership::check(file) {
            eprintln!("note: there it could not be used: {why}");
        }
        parsed(&path.to_string(), &text)?
    };
    println!("{path} can be used");
    for line in policy.summary() {
        println!("  {line}");
    }
    for line in policy.ending_keys(BootClock.now().wall_seconds(), ENDS_SOON) {
        println!("warning: {line}: nothing new is taken up by its signature from then on");
    }
    Ok(0)
}

/// What of a policy a file by hand was held against, on stderr.
pub(super) fn say_asked(asked: &Policy, path: &Path, has_signature: bool) {
    let path = path.display();
    let Some(policy) = asked.in_force() else {
        if has_signature {
            eprintln!("note: the signature was not checked: there is no policy at {path} with a key");
        }
        return;
    };
    let of_maps = policy.allowed_namespaces.as_ref().map_or("", |_| ", but for its allowedNamespaces: a file has none");
    eprintln!("note: the node's policy {path} was asked{of_maps}");
    match (&policy.signatures, has_signature) {
        (Some(_), false) => eprintln!("note: the signature was not checked, which the policy asks for: --signature"),
        (Some(_), true) => eprintln!("note: the signature was checked; its sequence is held against the node's own"),
        (None, true) => eprintln!("note: the signature was not checked: the policy has no key"),
        (None, false) => {}
    }
}

/// Whether it is admitted, in the daemon's words.
pub(super) fn admitted(admission: &Admission) -> Result<(), RenderError> {
    if let Some(why) = admission.policy.admits_nothing() {
        return Err(RenderError::Internal(why));
    }
    let refused = admission.refused.as_ref().or(admission.denied.as_ref()).cloned();
    let now = BootClock.now().wall_seconds();
    let out_of_date = || admission.signed.as_ref()?.out_of_date(None, now);
    refused.or_else(out_of_date).map_or(Ok(()), |why| Err(RenderError::Policy(why)))
}

fn parsed(name: &str, text: &str) -> Result<NodePolicy, String> {
    NodePolicy::parse(text).map_err(|why| format!("{name}: {why}"))
}

/// A policy that is to be installed: one that comes with the program, or a file.
pub(super) fn chosen(name: &str) -> Result<String, Failure> {
    if let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
        return Ok((*text).to_owned());
    }
    let fail = |error: std::io::Error| {
        Failure::usage(format!("--policy {name}: {error}; it is baseline, strict or the path of a NodePolicy"))
    };
    let text = std::fs::read_to_string(name).map_err(fail)?;
    parsed(name, &text)?;
    Ok(text)
}

/// Puts it in its place, unless another one is there; true if there was none.
pub(super) fn install(text: &str) -> Result<bool, String> {
    let path = Path::new(DEFAULT_PATH);
    // First: where others may write, they may have put a link in the way.
    ownership::check(path).map_err(|error| error.to_string())?;
    match systemctl::read(path)? {
        Some(there) if there == text => {
            println!("{DEFAULT_PATH} is up to date");
            Ok(false)
        }
        Some(_) => Err(format!("{DEFAULT_PATH} is there and says something else: edit it, or remove it first")),
        None => {
            systemctl::write(path, text)?;
            println!("wrote {DEFAULT_PATH}");
            Ok(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_can_be_used() {
        for (name, text) in SHIPPED {
            assert_eq!(chosen(name).ok().as_deref(), Some(text));
            let policy = NodePolicy::parse(text).unwrap_or_else(|why| panic!("{name}: {why}"));
            assert!(policy.denied_fields.len() > 15 && policy.overridable_flags.is_some(), "{name}");
        }
        assert!(chosen("/no/such/file").is_err_and(|failure| failure.message.contains("baseline, strict")));
    }
}

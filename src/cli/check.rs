//! `check`: a preflight by hand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use nix::unistd::mkdtemp;

use super::common::{Failure, FlagsOption, block_on};
use super::node::{Node, NodeOptions, ask_version};
use super::policy;
use crate::adapters::local_files::LocalFiles;
use crate::adapters::preflight::PreflightCommand;
use crate::daemon::admission::Policy;
use crate::daemon::render;
use crate::machine::model::{RenderError, Rendered, Verdict};
use crate::ports::{Checkpoint, Local as _};
use kubelet_config::assignment::DEFAULT_KEY as KEY;
use kubelet_config::flags::KEY_SUFFIX;
use kubelet_config::policy::{Admission, Comment, KEY_SUFFIX as SIGNATURE_SUFFIX};
use kubelet_config::rendering::Configuration;
use kubelet_config::schema::{self, UnknownFields};
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Source};

const REJECTED: u8 = 1;
const UNKNOWN: u8 = 2;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// A KubeletConfiguration; with --merge overlay, only what differs from the node's own file.
    file: PathBuf,
    /// The minisign signature of FILE, which is checked with the keys of the node's policy.
    #[arg(long, value_name = "MINISIG")]
    signature: Option<PathBuf>,
    #[command(flatten)]
    flags: FlagsOption,
    /// Fields that this kubelet's version does not know (also in wrong case), or that stand twice: say so (warn, as the kubelet does), or reject the configuration (refuse) [default: that of the running supervisor, whose command line is taken, else warn]
    #[arg(long, env = "KUBELET_SUPERVISOR_UNKNOWN_FIELDS", value_name = "warn|refuse")]
    unknown_fields: Option<UnknownFields>,
    #[command(flatten)]
    node: NodeOptions,
}

pub(super) fn run(options: &Options) -> Result<u8, Failure> {
    Ok(match judged(options)? {
        Ok(remarks) => {
            for remark in remarks {
                println!("note: {remark}");
            }
            println!("valid");
            0
        }
        Err(RenderError::Load(why) | RenderError::Policy(why)) => {
            println!("rejected: {why}");
            REJECTED
        }
        Err(why) => {
            println!("could not tell: {why}");
            UNKNOWN
        }
    })
}

/// What the kubelet remarks on a configuration that it finds valid.
fn judged(options: &Options) -> Result<Result<Vec<String>, RenderError>, Failure> {
    // Exit code 1 says that FILE is rejected.
    let unknown =
        |failure: Failure| Failure { code: if failure.code == REJECTED { UNKNOWN } else { failure.code }, ..failure };
    let Node { local, unknown_fields, .. } = options.node.node().map_err(unknown)?;
    let unknown_fields = options.unknown_fields.or(unknown_fields).unwrap_or_default();
    let (program, args) = (local.program.clone(), local.args.clone());
    ask_version(&local)?;
    let (rendered, admission) = match file(&options.file, options.signature.as_deref(), &options.flags, &local)? {
        Ok(found) => found,
        Err(error) => return Ok(Err(error)),
    };
    report_notes(&rendered);
    if let Err(error) = policy::admitted(&admission) {
        return Ok(Err(error));
    }
    let problems = schema::messages(&rendered.problems, local.kubelet_minor());
    let by_policy = admission.refuses_unknown_fields;
    if (by_policy || unknown_fields == UnknownFields::Refuse) && !problems.is_empty() {
        let whom = if by_policy { "the node's policy" } else { "--unknown-fields" };
        return Ok(Err(RenderError::Load(schema::refusal_by(whom, &problems))));
    }
    report(&problems);
    let dir = PrivateDir::new()?;
    let path = dir.0.join("candidate.json");
    std::fs::write(&path, rendered.value.to_string())
        .map_err(|error| Failure::new(UNKNOWN, format!("{}: {error}", path.display())))?;
    let preflight = PreflightCommand { program, args, dir: dir.0.clone() };
    let (path, overrides) = (path.display().to_string(), rendered.overrides);
    let candidate = Rendered { path, overrides, ..Rendered::default() };
    let verdict = block_on(async {
        match preflight.can_judge(&candidate.overrides).await {
            Ok(()) => preflight.judge(&candidate).await,
            Err(why) => Verdict::Inconclusive(format!("this kubelet cannot serve as a judge: {why}")),
        }
    })?;
    Ok(match verdict {
        Verdict::Valid(remarks) => Ok(remarks),
        Verdict::Load(message) | Verdict::Validate(message) => Err(RenderError::Load(message)),
        Verdict::Inconclusive(why) | Verdict::NotItsFault(why) => Err(RenderError::Internal(why)),
    })
}

/// A configuration, and what the node's policy says of it.
pub(super) type Judged = (Configuration, Admission);

/// Renders a file as if it were the payload of a ConfigMap in its directory, and asks the policy.
pub(super) fn file(
    path: &Path,
    signature: Option<&Path>,
    flags: &FlagsOption,
    local: &LocalFiles,
) -> Result<Result<Judged, RenderError>, Failure> {
    let read = |path: &Path| -> Result<_, Failure> {
        let bytes =
            std::fs::read(path).map_err(|error| Failure::new(UNKNOWN, format!("{}: {error}", path.display())))?;
        let not_text = |_| RenderError::Load(format!("{}: it is not UTF-8", path.display()));
        Ok(String::from_utf8(bytes).map_err(not_text))
    };
    let absolute =
        std::path::absolute(path).map_err(|error| Failure::new(UNKNOWN, format!("{}: {error}", path.display())))?;
    let mut files = BTreeMap::new();
    let beside = [("", Some(absolute.as_path())), (KEY_SUFFIX, flags.flags.as_deref()), (SIGNATURE_SUFFIX, signature)];
    for (suffix, path) in beside {
        let Some(path) = path else { continue };
        match read(path)? {
            Ok(text) => drop(files.insert(format!("{KEY}{suffix}"), text)),
            Err(error) => return Ok(Err(error)),
        }
    }
    // The annotations are nobody's yet: they will have to be what was signed.
    let comment = files.get(&format!("{KEY}{SIGNATURE_SUFFIX}")).and_then(|text| Comment::of_file(text).ok());
    let annotations = comment.map_or_else(ConfigAnnotations::default, |comment| ConfigAnnotations {
        acknowledge: Some(comment.acknowledge()),
        courtesy: comment.courtesy().map(str::to_owned),
        confirm_within: comment.confirm_within().map(str::to_owned),
        ..ConfigAnnotations::default()
    });
    let reference = ConfigMapRef { kubelet_config_key: KEY.to_owned(), ..ConfigMapRef::default() };
    let source = Source { reference, ..Source::default() };
    let dir = absolute.parent().unwrap_or(Path::new("/")).display().to_string();
    let checkpoint = Checkpoint { dir, files, annotations, ..Checkpoint::default() };
    let asked = Policy::read(local);
    policy::say_asked(&asked, &local.policy.path, signature.is_some());
    let judged = || {
        let signed = match signature {
            Some(_) => asked.signed_unread(&checkpoint, &source, local.merge)?,
            None => None,
        };
        let found = render::configuration(Some(asked.payload(&checkpoint, &source)), None, &local.args, local)?;
        let admission = asked.admission(None, (&found.effective, &found.overrides), Ok(signed), &local.args, local);
        Ok((found, admission))
    };
    Ok(judged())
}

/// What is worth knowing of a rendering, on stderr.
pub(super) fn report_notes(rendered: &Configuration) {
    for note in &rendered.notes {
        eprintln!("note: {note}");
    }
    if !rendered.overrides.is_empty() {
        eprintln!("note: flags: {}", rendered.overrides);
    }
    for field in &rendered.shadowed {
        eprintln!("note: {field} has no effect, the command line wins");
    }
}

/// Problems as notes, on stderr.
pub(super) fn report(problems: &[String]) {
    for problem in problems {
        eprintln!("note: {problem}");
    }
}

/// A directory that only we can enter, gone when this is dropped.
struct PrivateDir(PathBuf);

impl PrivateDir {
    fn new() -> Result<Self, Failure> {
        // A name that nobody can foresee, and so not be there before us.
        let path = std::env::temp_dir().join("kubelet-supervisor-check-XXXXXX");
        let made = mkdtemp(&path);
        let failed = |error| Failure::new(UNKNOWN, format!("{}: {error}; TMPDIR names another place", path.display()));
        made.map(Self).map_err(failed)
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

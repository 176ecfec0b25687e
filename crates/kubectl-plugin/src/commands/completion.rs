//! Completion: scripts for shells, and the answer that they and kubectl ask for at each TAB.
//!
//! kubectl (from v1.26) completes a plugin by running `kubectl_complete-kubelet_config` with the words so far; the
//! scripts ask the same way. One line a candidate, with a description after a TAB; at last `:4`, or `:0` where file
//! names are meant (cobra's directives NoFileComp and Default).

use std::ffi::OsString;
use std::time::Duration;

use clap::{Arg, Args, Command, FromArgMatches as _, ValueEnum};
use kube::api::ListParams;
use kube::core::request::Request as Path;

use crate::api::client::config_maps;
use crate::api::nodes::NODES;
use crate::api::pools::POOLS;
use crate::output::{self, plain};
use crate::{Context, Failure, context};

/// Nobody waits longer for a list of names.
const PATIENCE: Duration = Duration::from_secs(3);

/// More names help nobody.
const NAMES: u32 = 500;

/// For which shell.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Options of `completion`.
#[derive(Debug, Args)]
#[command(
    after_help = "kubectl from v1.26 completes `kubectl kubelet-config` by itself, where kubectl_complete-kubelet_config is \
    in the PATH. The script is for kubectl-kubelet_config called by its own name:\n  \
    source <(kubectl kubelet-config completion bash)"
)]
pub(crate) struct Options {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

impl Options {
    pub(crate) fn run(self) -> Result<(), Failure> {
        output::write_stdout(match self.shell {
            Shell::Bash => include_str!("completion/bash.sh"),
            Shell::Zsh => include_str!("completion/zsh.sh"),
            Shell::Fish => include_str!("completion/fish.fish"),
        })
    }
}

/// The words so far; the last one, maybe empty, is being written.
#[derive(Debug)]
pub(crate) struct Question {
    words: Vec<String>,
    /// The whole command line.
    root: Command,
}

/// What may be the last word of the command line.
#[derive(Debug, PartialEq, Eq)]
enum Candidates {
    /// One of these.
    Words(Vec<(String, String)>),
    /// A name that the API server knows, behind this text.
    Nodes(String),
    /// The same.
    ConfigMaps(String),
    /// The same; each is told as pool/NAME.
    Pools(String),
    /// A file's name.
    File,
    /// Whatever the user likes.
    Free,
}

impl Question {
    /// If that is what the plugin was called for: `__complete WORDS`.
    pub(crate) fn from_args(args: &[OsString], root: Command) -> Option<Self> {
        let words = args.get(1..)?.split_first().filter(|(first, _)| *first == "__complete")?.1;
        Some(Self { words: words.iter().map(|word| word.to_string_lossy().into_owned()).collect(), root })
    }

    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (candidates, last) = candidates(&self.words, &self.root);
        let words = match candidates {
            Candidates::Words(words) => words,
            Candidates::Nodes(before) => self.names(|_| Ok(Path::new(NODES)), &before).await,
            Candidates::Pools(before) => self.names(|_| Ok(Path::new(POOLS)), &format!("{before}pool/")).await,
            Candidates::ConfigMaps(before) => self.names(|it| config_maps(&it.namespace), &before).await,
            Candidates::File => return output::write_stdout(":0\n"),
            Candidates::Free => Vec::new(),
        };
        let fits = words.into_iter().filter(|(word, _)| word.starts_with(&last));
        let lines: String =
            fits.map(|(word, help)| if help.is_empty() { word + "\n" } else { format!("{word}\t{help}\n") }).collect();
        output::write_stdout(&(lines + ":4\n"))
    }

    /// With what the words say of it.
    async fn context(&self) -> Option<Context> {
        let mut args = vec!["kubectl kubelet-config".to_owned(), "status".to_owned()];
        let mut words = self.words.iter();
        while let Some(word) = words.next() {
            let name = word.split('=').next().unwrap_or_default();
            if ["--kubeconfig", "--context", "--cluster", "--user", "--as", "--namespace", "-n"].contains(&name) {
                args.push(word.clone());
                if !word.contains('=') {
                    args.extend(words.next().cloned());
                }
            }
        }
        let matches = self.root.clone().try_get_matches_from(args).ok()?;
        Context::new(&context::Options::from_arg_matches(&matches).ok()?).await.ok()
    }

    /// Names of objects, each behind `before`; none if they cannot be had at once.
    async fn names(
        &self,
        path: impl FnOnce(&Context) -> Result<Path, kube::core::request::Error>,
        before: &str,
    ) -> Vec<(String, String)> {
        let list = async {
            let context = self.context().await?;
            let params = ListParams { limit: Some(NAMES), ..ListParams::default() };
            let request = path(&context).and_then(|path| path.list_metadata(&params));
            let list = context.api().request("list names", request).await.ok()?;
            let names = list.get("items")?.as_array()?.iter();
            let names = names.filter_map(|item| item.pointer("/metadata/name")?.as_str());
            Some(names.map(|name| (format!("{before}{}", plain(name)), String::new())).collect())
        };
        tokio::time::timeout(PATIENCE, list).await.ok().flatten().unwrap_or_default()
    }
}

/// The candidates for the last word, which is returned too.
fn candidates(words: &[String], root: &Command) -> (Candidates, String) {
    let (last, before) = words.split_last().map_or(("", words), |(last, before)| (last.as_str(), before));
    let (mut command, mut globals, mut positional, mut open) = (root, Vec::new(), 0, None);
    globals.extend(root.get_arguments().filter(|arg| arg.is_global_set()));
    let takes_next = |arg: &&Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    for word in before {
        if open.take().is_some() {
            continue; // an option's value
        }
        if word.starts_with('-') && word.len() > 1 {
            open = option(command, &globals, word).filter(takes_next).filter(|_| !word.contains('='));
        } else if let Some(found) = command.find_subcommand(word) {
            (command, positional) = (found, 0);
        } else {
            positional += 1;
        }
    }
    let found = if let Some(arg) = open {
        values(arg, "")
    } else if let Some((name, _)) = last.split_once('=').filter(|_| last.starts_with("--")) {
        option(command, &globals, name).map_or(Candidates::Free, |arg| values(arg, &format!("{name}=")))
    } else if last.starts_with('-') {
        let options = command.get_arguments().chain(globals.iter().copied()).filter(|arg| !arg.is_hide_set());
        let long = |arg: &Arg| Some((format!("--{}", arg.get_long()?), help(arg.get_help())));
        Candidates::Words(options.filter_map(long).collect())
    } else if command.has_subcommands() {
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        Candidates::Words(shown.map(|command| (command.get_name().to_owned(), help(command.get_about()))).collect())
    } else {
        let all: Vec<&Arg> = command.get_positionals().collect();
        // The last one may take several.
        all.get(positional).or(all.last()).map_or(Candidates::Free, |arg| values(arg, ""))
    };
    (found, last.to_owned())
}

/// The option of a word such as `-o`, `--output` or `--output=json`.
fn option<'a>(command: &'a Command, globals: &[&'a Arg], word: &str) -> Option<&'a Arg> {
    let word = word.split('=').next().unwrap_or_default();
    let mut all = command.get_arguments().chain(globals.iter().copied());
    all.find(|arg| {
        let long = arg.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
        long || arg.get_short().is_some_and(|short| word == format!("-{short}"))
    })
}

fn values(arg: &Arg, before: &str) -> Candidates {
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        let shown = possible.iter().filter(|value| !value.is_hide_set());
        return Candidates::Words(
            shown.map(|value| (format!("{before}{}", value.get_name()), help(value.get_help()))).collect(),
        );
    }
    let names = arg.get_value_names().unwrap_or_default();
    match names.first().map(clap::builder::Str::as_str).unwrap_or_default() {
        "NODE" => Candidates::Nodes(before.to_owned()),
        "POOL" => Candidates::Pools(before.to_owned()),
        "CONFIGMAP" => Candidates::ConfigMaps(before.to_owned()),
        name if name.contains("FILE") || name.contains("DIR") => Candidates::File,
        _ => Candidates::Free,
    }
}

/// The first sentence, on one line.
fn help(text: Option<&clap::builder::StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    plain(text.lines().next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: &str) -> Candidates {
        candidates(&line.split(' ').map(str::to_owned).collect::<Vec<_>>(), &crate::command()).0
    }

    #[test]
    fn the_command_line_makes_sense() {
        crate::command().debug_assert();
    }

    #[test]
    fn what_may_stand_where() {
        assert_eq!(at("assign "), Candidates::ConfigMaps(String::new()));
        assert_eq!(at("assign pool-a "), Candidates::Nodes(String::new()));
        assert_eq!(at("assign pool-a n1 n2 "), Candidates::Nodes(String::new()));
        assert_eq!(at("-n kube-system assign --key k pool-a n"), Candidates::Nodes(String::new()));
        assert_eq!(at("status "), Candidates::Nodes(String::new()));
        assert_eq!(at("status --kubeconfig "), Candidates::File);
        assert_eq!(at("rollback n1 --to "), Candidates::ConfigMaps(String::new()));
        assert_eq!(at("rollback n1 --to=po"), Candidates::ConfigMaps("--to=".to_owned()));
        assert_eq!(at("status -l "), Candidates::Free);
        assert_eq!(at("assign m --dry-run "), Candidates::Nodes(String::new()), "its value stands behind =");
        assert_eq!(at("render "), Candidates::Pools(String::new()));
        assert_eq!(at("render pool/a "), Candidates::Nodes(String::new()));
    }
}

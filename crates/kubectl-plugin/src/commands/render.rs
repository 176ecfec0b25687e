//! `render`: what a pool says, for a Node.

use clap::{Args, ValueEnum};

use super::pool_configuration;
use crate::api::nodes::bare_name;
use crate::fleet::config_ref::ConfigRef;
use crate::output::{self, Format};
use crate::{Context, Failure};
use kubelet_config::assignment::is_object_name;
use kubelet_config::source::Merge;

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// For programs.
    Json,
    /// For programs and people.
    #[default]
    Yaml,
}

/// Options of `render`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The pool (KubeletConfigPool), as pool/NAME.
    #[arg(value_name = "POOL", value_parser = pool_name)]
    pool: String,
    /// The node, as NODE or node/NODE.
    #[arg(value_name = "NODE")]
    node: String,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Shown,
}

/// As `diff` takes it, or the name alone.
pub(crate) fn pool_name(word: &str) -> Result<String, String> {
    match ConfigRef::parse(word).map_err(|_| format!("{word:?} cannot be the name of a pool"))? {
        ConfigRef::Pool(name) | ConfigRef::Node(name) if is_object_name(&name) => Ok(name),
        _ => Err(format!("{word:?} is no pool/NAME")),
    }
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<(), Failure> {
        let node = bare_name(&self.node);
        let (reference, map) = pool_configuration::read(&context.api(), &self.pool, Some(node)).await?;
        let merge = match map.merge {
            Merge::Replace => "it takes the place of the node's local file",
            Merge::Overlay => "it is laid over the node's local file",
        };
        eprintln!("ConfigMap {}/{}: {merge}", reference.namespace, reference.name);
        output::document(if self.output == Shown::Json { Format::Json } else { Format::Yaml }, &map.value)
    }
}

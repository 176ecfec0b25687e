//! What a word of the command line means where a configuration is asked for.

use std::fmt;

/// Where a configuration is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConfigRef {
    /// What this node's kubelet runs with.
    Node(String),
    /// A ConfigMap; without a namespace, in that of the command line.
    ConfigMap {
        /// Its namespace.
        namespace: Option<String>,
        /// Its name.
        name: String,
        /// The key of its data.
        key: Option<String>,
    },
    /// What this pool says.
    Pool(String),
    /// A local file; `-` is standard input.
    File(String),
}

impl ConfigRef {
    /// Reads `node/NAME`, `cm/NAME`, `pool/NAME`, `NAMESPACE/NAME[/KEY]`, a file's path (it begins with `/` or
    /// `.`, ends in `.yaml`, `.yml` or `.json`, or is `-`), else a node's name. No file is looked
    /// for: what a word means must not depend on where it is said.
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{word:?} is no NODE, NAMESPACE/CONFIGMAP, cm/CONFIGMAP, pool/POOL or FILE (./NAME for one here)")
        };
        let map = |namespace: Option<&str>, name: &str, key: Option<&str>| Self::ConfigMap {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            key: key.map(str::to_owned),
        };
        let is_file = word == "-"
            || word.starts_with(['/', '.'])
            || [".yaml", ".yml", ".json"].iter().any(|end| word.to_ascii_lowercase().ends_with(end));
        let parts: Vec<&str> = word.split('/').collect();
        if !is_file && parts.iter().any(|part| part.is_empty()) {
            return Err(wrong());
        }
        match parts.as_slice() {
            ["node" | "nodes" | "no", name] if !name.is_empty() => Ok(Self::Node((*name).to_owned())),
            ["cm" | "configmap" | "configmaps", name] if !name.is_empty() => Ok(map(None, name, None)),
            ["pool" | "kcpool" | "kubeletconfigpool" | "kubeletconfigpools", name] if !name.is_empty() => {
                Ok(Self::Pool((*name).to_owned()))
            }
            _ if is_file => Ok(Self::File(word.to_owned())),
            [name] => Ok(Self::Node((*name).to_owned())),
            [namespace, name] => Ok(map(Some(namespace), name, None)),
            [namespace, name, key] => Ok(map(Some(namespace), name, Some(key))),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for ConfigRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node/{name}"),
            Self::ConfigMap { namespace: Some(namespace), name, .. } => write!(f, "{namespace}/{name}"),
            Self::ConfigMap { name, .. } => write!(f, "cm/{name}"),
            Self::Pool(name) => write!(f, "pool/{name}"),
            Self::File(path) if path == "-" => f.write_str("standard input"),
            Self::File(path) => f.write_str(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_mean_the_same_everywhere() {
        let map = |namespace: Option<&str>, name: &str, key: Option<&str>| {
            let own = |text: &str| text.to_owned();
            Ok(ConfigRef::ConfigMap { namespace: namespace.map(own), name: own(name), key: key.map(own) })
        };
        let node = |name: &str| Ok(ConfigRef::Node(name.to_owned()));
        let file = |path: &str| Ok(ConfigRef::File(path.to_owned()));
        for (word, expected) in [
            ("n1", node("n1")),
            ("ip-10-0-0-1.ec2.internal", node("ip-10-0-0-1.ec2.internal")),
            ("node/n1", node("n1")),
            ("no/x.yaml", node("x.yaml")),
            ("cm/a", map(None, "a", None)),
            ("configmap/a.yaml", map(None, "a.yaml", None)),
            ("pool/a", Ok(ConfigRef::Pool("a".to_owned()))),
            ("pool/m/k", map(Some("pool"), "m", Some("k"))),
            ("n/m", map(Some("n"), "m", None)),
            ("n/m/k", map(Some("n"), "m", Some("k"))),
            ("a.yaml", file("a.yaml")),
            ("dir/a.YML", file("dir/a.YML")),
            ("./a", file("./a")),
            ("/dev/stdin", file("/dev/stdin")),
            ("-", file("-")),
        ] {
            assert_eq!(ConfigRef::parse(word), expected, "{word}");
        }
        for word in ["", "a/", "node/", "a//b", "a/b/c/d"] {
            assert!(ConfigRef::parse(word).is_err(), "{word:?}");
        }
    }
}

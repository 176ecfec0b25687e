//! `push`: a file as an immutable ConfigMap whose name tells its content.

use clap::{Args, ValueEnum};
use kube::api::PostParams;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path as FilePath;

use crate::api::client::{Client, config_maps};
use crate::api::nodes::{self, NodeSelection};
use crate::api::write::DryRun;
use crate::commands::configuration::{self, MERGE_ANNOTATION};
use crate::commands::status::now;
use crate::fleet::assign::LABEL_MAX;
use crate::fleet::configmap_name;
use crate::output::{self, Format};
use crate::{Context, Failure, context};
use kubelet_config::assignment::{self, DEFAULT_KEY};
use kubelet_config::flags::KEY_SUFFIX;
use kubelet_config::merge::merge;
use kubelet_config::schema::{self, FieldProblem, UnknownFields};
use kubelet_config::source::{Merge, is_safe_key};
use kubelet_config::{policy, yaml};

/// `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// `configmap/NAME`.
    Name,
    /// The object.
    Json,
    /// The object.
    Yaml,
}

/// Options of `push`.
#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// File with a KubeletConfiguration in YAML or JSON; `-`: standard input.
    #[arg(value_name = "FILE")]
    file: String,
    /// File with changes of the kubelet's command line, which become the key KEY.flags: --name=value or !--name, one a line.
    #[arg(long, value_name = "FILE")]
    flags: Option<String>,
    /// File with the signature that minisign made of FILE, which becomes the key KEY.minisig.
    #[arg(long, value_name = "FILE")]
    signature: Option<String>,
    /// What the ConfigMap's name begins with, before a hash of its content; default: the file's name without its ending.
    #[arg(long, value_name = "BASE")]
    name: Option<String>,
    /// The key of the ConfigMap's data.
    #[arg(long, value_name = "KEY", default_value = DEFAULT_KEY)]
    key: String,
    /// The file holds only what differs from each node's own configuration file, and is laid over that instead of replacing it.
    #[arg(long)]
    overlay: bool,
    /// Warn of fields that kubelets of this version do not know, such as 1.29; default: the versions of the nodes.
    #[arg(long, value_name = "VERSION", value_parser = schema::minor)]
    kubelet: Option<u64>,
    /// Fields that a kubelet would ignore: say so, or refuse the file.
    #[arg(long, value_name = "warn|refuse", default_value = "warn")]
    unknown_fields: UnknownFields,
    /// none: do it; client: only say what would be created; server: have the API server check it, and keep nothing.
    #[arg(long, value_enum, default_value = "none", num_args = 0..=1, default_missing_value = "client", require_equals = true)]
    dry_run: DryRun,
    /// Print the ConfigMap's name alone, or the whole object; default: what was done.
    #[arg(short, long, value_enum)]
    output: Option<Shown>,
}

impl Options {
    /// The same as `push FILE` with this key, said by another command; gives the ConfigMap.
    pub(crate) async fn push(file: &str, key: &str, overlay: bool, client: &Client) -> Result<Value, Failure> {
        let options = Self { file: file.to_owned(), key: key.to_owned(), overlay, ..Self::default() };
        let text = configuration::read_file(file)?;
        options.check(&text)?; // what they would ignore the nodes say themselves
        let data = BTreeMap::from([(options.key.clone(), text)]);
        let (name, object) = options.object(&client.namespace, &data)?;
        Ok(options.create(client, &name, object).await?.1)
    }

    pub(crate) async fn run(self, connection: &context::Options) -> Result<(), Failure> {
        let text = configuration::read_file(&self.file)?;
        let problems = self.check(&text)?;
        let flags = self.flags.as_deref().map(configuration::read_flags).transpose()?;
        let flags = flags.map(|text| (format!("{}{KEY_SUFFIX}", self.key), text));
        let mut data: BTreeMap<String, String> = [(self.key.clone(), text)].into_iter().chain(flags).collect();
        if let Some(signature) = &self.signature {
            let text = self.read_signature(signature, &data)?;
            data.insert(format!("{}{}", self.key, policy::KEY_SUFFIX), text);
        }
        let (name, object) = self.object(&connection.namespace, &data)?;
        let (done, object) = if self.dry_run == DryRun::Client {
            self.tell(schema::messages(&problems, self.kubelet))?;
            ("created", object)
        } else {
            let client = Context::new(connection).await?.api();
            self.tell(self.messages(&client, &problems).await)?;
            self.create(&client, &name, object).await?
        };
        match self.output {
            None if done == "created" => {
                output::write_stdout(&format!("configmap/{name} {done}{}\n", self.dry_run.suffix()))
            }
            None => output::write_stdout(&format!("configmap/{name} {done}\n")),
            Some(Shown::Name) => output::write_stdout(&format!("configmap/{name}\n")),
            Some(Shown::Json) => output::document(Format::Json, &object),
            Some(Shown::Yaml) => output::document(Format::Yaml, &object),
        }
    }

    /// Refuses what is no KubeletConfiguration; gives what some kubelet would ignore.
    fn check(&self, text: &str) -> Result<Vec<FieldProblem>, Failure> {
        let fail = |why: String| Failure::new(format!("{}: {why}", configuration::title(&self.file)));
        let mut document = yaml::parse(text).map_err(fail)?;
        if let Some(duplicate) = document.duplicate {
            return Err(fail(format!("a field stands twice, and the kubelet would go by the last one: {duplicate}")));
        }
        kubelet_config::own_files::check_kind(&mut document.value, self.overlay)
            .map_err(|why| fail(format!("{why}, so this is no KubeletConfiguration")))?;
        Ok(schema::problems(&document.value))
    }

    /// What the trusted comment says must be what is pushed. Whose signature it is the nodes know, and nobody here.
    fn read_signature(&self, path: &str, data: &BTreeMap<String, String>) -> Result<String, Failure> {
        let fail = |why: String| Failure::new(format!("{path}: {why}"));
        let text = configuration::read_file(path)?;
        let comment = policy::Comment::of_file(&text).map_err(fail)?;
        let merge = if self.overlay { Merge::Overlay } else { Merge::Replace };
        let (merge, acknowledge, courtesy, confirm_within) = (merge.as_str(), None, None, None);
        let pushed = policy::Signable { key: &self.key, data, merge, acknowledge, courtesy, confirm_within };
        comment.check(&pushed).map_err(fail)?;
        if u64::try_from(now()).is_ok_and(|now| now >= comment.expires) {
            return Err(fail("trusted comment: expires= is over: sign it again".to_owned()));
        }
        Ok(text)
    }

    /// What kubelets of the chosen version would ignore, or those of the cluster's nodes, which are asked for if that
    /// matters.
    async fn messages(&self, client: &Client, problems: &[FieldProblem]) -> Vec<String> {
        let mut messages = schema::messages(problems, self.kubelet);
        let by_version = problems.iter().any(|problem| matches!(problem, FieldProblem::Versions { .. }));
        if self.kubelet.is_some() || !by_version {
            return messages;
        }
        let rows = match nodes::read_each(client, &NodeSelection::default()).await {
            Ok((rows, _)) => rows,
            Err(failure) => {
                eprintln!(
                    "note: which versions the nodes' kubelets have is not known, --kubelet VERSION says it: {}",
                    output::plain(&failure.message)
                );
                return messages;
            }
        };
        let mut versions: BTreeMap<u64, usize> = BTreeMap::new();
        for minor in rows.iter().filter_map(|row| schema::minor(&row.kubelet).ok()) {
            *versions.entry(minor).or_default() += 1;
        }
        for (minor, nodes) in versions {
            let theirs = problems.iter().filter(|problem| matches!(problem, FieldProblem::Versions { .. }));
            let theirs = theirs.filter_map(|problem| problem.message(Some(minor)));
            messages.extend(theirs.map(|line| format!("{line} ({nodes} node{})", if nodes == 1 { "" } else { "s" })));
        }
        messages
    }

    fn tell(&self, messages: Vec<String>) -> Result<(), Failure> {
        if self.unknown_fields == UnknownFields::Refuse && !messages.is_empty() {
            let why = output::plain(&schema::refusal(&messages));
            return Err(Failure::new(format!("{}: {why}", configuration::title(&self.file))));
        }
        for line in messages {
            eprintln!("warning: {}", output::plain(&line));
        }
        Ok(())
    }

    fn map_name(&self, data: &BTreeMap<String, String>) -> Result<String, Failure> {
        if !data.keys().all(|key| is_safe_key(key)) {
            let why = "cannot be a key of a ConfigMap: A-Z, a-z, 0-9, -, _ and ., at most 253 with what is added";
            return Err(Failure::new(format!("--key: {:?} {why}", self.key)));
        }
        let stem = FilePath::new(&self.file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let base = match (&self.name, stem) {
            (Some(base), _) => base.clone(),
            (None, Some(stem)) if self.file != "-" => stem,
            _ => return Err(Failure::new("standard input has no name: say --name BASE")),
        };
        let name = configmap_name::name(&base, data);
        if !assignment::is_subdomain(&name, 253) {
            return Err(Failure::new(format!(
                "{base:?} cannot begin the name of a ConfigMap (a-z, 0-9, - and ., at most 242): say --name BASE"
            )));
        }
        if name.len() > LABEL_MAX {
            eprintln!(
                "warning: a label of a Node holds {LABEL_MAX} characters and this name has {}: it can be assigned by \
                 spec.configSource alone; a shorter --name helps",
                name.len()
            );
        }
        Ok(name)
    }

    /// The ConfigMap, and its name.
    fn object(&self, namespace: &str, data: &BTreeMap<String, String>) -> Result<(String, Value), Failure> {
        let name = self.map_name(data)?;
        let metadata = json!({"name": name, "namespace": namespace});
        let mut object =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data, "immutable": true});
        if self.overlay {
            merge(&mut object, &json!({"metadata": {"annotations": {MERGE_ANNOTATION: "overlay"}}}));
        }
        Ok((name, object))
    }

    /// What was done, and the object as it is then.
    async fn create(&self, client: &Client, name: &str, object: Value) -> Result<(&'static str, Value), Failure> {
        let params = PostParams { dry_run: self.dry_run == DryRun::Server, ..PostParams::default() };
        let request =
            config_maps(&client.namespace).and_then(|maps| maps.create(&params, object.to_string().into_bytes()));
        match client.request(&format!("create ConfigMap {}/{name}", client.namespace), request).await {
            Ok(created) => Ok(("created", created)),
            Err(error) if error.is_conflict() => Ok(("unchanged", Self::compare(client, name, &object).await?)),
            Err(error) if error.is_absent() => Err(Failure::new(format!(
                "{}; packaging/manifests/base makes kubelet-config with the rights that nodes need, -n chooses another",
                Failure::from(error).message
            ))),
            Err(error) => Err(error.into()),
        }
    }

    /// The name is taken: by the same, or by something else.
    async fn compare(client: &Client, name: &str, object: &Value) -> Result<Value, Failure> {
        let there = client.config_map(&client.namespace, name).await?;
        let title = format!("configmap/{name} is there in namespace {}", client.namespace);
        let field = |map: &Value, field: &str| map.get(field).cloned().unwrap_or_default();
        if field(&there, "data") != field(object, "data") || !field(&there, "binaryData").is_null() {
            return Err(Failure::new(format!(
                "{title} with other data, so somebody edited it, or made it without a hash: choose another --name"
            )));
        }
        let mode = |map: &Value| {
            let annotations = map.pointer("/metadata/annotations");
            annotations.and_then(|all| all.get(MERGE_ANNOTATION)?.as_str()).unwrap_or("replace").to_owned()
        };
        let (is, would) = (mode(&there), mode(object));
        if is != would {
            return Err(Failure::new(format!(
                "{title} with the same data, but to be merged by {is:?} and not by {would:?}: choose another --name"
            )));
        }
        if field(&there, "immutable") != true {
            eprintln!(
                "warning: {title} and can be edited, which nodes follow at once; to stop that: \
                 kubectl -n {} patch configmap {name} -p '{{\"immutable\":true}}'",
                client.namespace
            );
        }
        Ok(there)
    }
}

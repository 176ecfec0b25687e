//! `doctor`: finds what is missing, and says what mends it. It changes nothing: what it tries it tries as a dry run.

mod requests;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::api::client::{ApiError, Client};
use crate::api::list::{Selector, list};
use crate::api::nodes::{self, NODES, bare_name};
use crate::fleet::doctor::pools::{ExaminedPools, not_served};
use crate::fleet::doctor::rights::{self, RIGHTS, Right};
use crate::fleet::doctor::{ExaminedNode, Finding, grouped, newest, without_policy};
use crate::fleet::node::Carrier;
use crate::output::{self, Format, Out, Tone};
use crate::{Context, Failure};
use kubelet_config::assignment::LABELS;
use kubelet_config::bounds::first_of;

/// Something could not be checked.
const EXIT_UNCHECKED: u8 = 2;

/// Names that are shown of many.
const SHOWN: usize = 3;

/// The same in a note, which has no more than its one line.
const SHOWN_IN_NOTE: usize = 10;

/// Options of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The nodes, as NODE or node/NODE; default: all.
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
    /// Nodes with these labels, as kubectl takes them, such as pool=a,tier!=test.
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "nodes")]
    selector: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

/// What was found, and what was checked for it.
#[derive(Debug, Default)]
struct Report {
    /// So many of the user's were looked at.
    rights: usize,
    /// Of those nodes it is about.
    nodes: usize,
    /// Different ones that are assigned.
    maps: usize,
    carrier: Option<Carrier>,
    /// How many there are, if they are served, and who carries them out.
    pools: Option<(usize, Option<String>)>,
    /// What carries them out, if that is a Pod.
    image: Option<String>,
    findings: Vec<Finding>,
    /// What is worth knowing, and nobody need mend.
    notes: Vec<Finding>,
    /// What could not be checked, and why.
    unchecked: Vec<String>,
}

impl Options {
    pub(crate) async fn run(self, context: &Context) -> Result<ExitCode, Failure> {
        let client = context.api();
        let examine = async {
            let mut report = Report::default();
            report.rights(&client).await?;
            let examined_nodes = self.examined_nodes(&client, &mut report).await?;
            report.cluster(&client, context.impersonates, examined_nodes.first()).await;
            report.examined_nodes(&client, &examined_nodes).await;
            report.pools(&client).await;
            Ok(report)
        };
        let mut report = examine.await.map_err(|failure: Failure| Failure { code: EXIT_UNCHECKED, ..failure })?;
        report.findings = grouped(std::mem::take(&mut report.findings));
        output::show(self.output, || report.document(), |out| report.text(out))?;
        Ok(report.code())
    }

    async fn examined_nodes(&self, client: &Client, report: &mut Report) -> Result<Vec<ExaminedNode>, Failure> {
        let mut examined_nodes = Vec::new();
        if self.nodes.is_empty() {
            let selector = Selector { label_selector: self.selector.clone(), ..Selector::default() };
            let read = |node| Some(ExaminedNode::new(&node, &client.namespace));
            let found = list(client, NODES, "list nodes", selector, read).await;
            examined_nodes = report.seen("the nodes", found).unwrap_or_default();
            if examined_nodes.is_empty() && report.unchecked.is_empty() {
                let why =
                    self.selector.as_ref().map(|selector| format!(" has the labels {selector}")).unwrap_or_default();
                return Err(Failure::new(format!(
                    "no node{why}: `kubectl get nodes --show-labels` shows what there is"
                )));
            }
        }
        for name in &self.nodes {
            examined_nodes.push(ExaminedNode::new(&nodes::get(client, bare_name(name)).await?, &client.namespace));
        }
        report.nodes = examined_nodes.len();
        Ok(examined_nodes)
    }
}

impl Report {
    /// The user's rights. If not even that can be asked, nothing can.
    async fn rights(&mut self, client: &Client) -> Result<(), Failure> {
        let mut lacking: Vec<Right> = Vec::new();
        let are_pools_served = requests::pools_group(client).await.is_ok_and(|group| group.is_some());
        for right in RIGHTS.iter().filter(|right| are_pools_served || right.group != rights::POOLS) {
            self.rights += 1;
            let allowed = requests::allows(client, right).await;
            if !allowed.map_err(|error| Failure::new(format!("asking which rights you have: {}", error.cause())))? {
                lacking.push(*right);
            }
        }
        if !lacking.is_empty() {
            let user = requests::who(client).await;
            self.findings.extend(rights::missing(&lacking, &client.namespace, user.as_deref()));
        }
        Ok(())
    }

    /// What the API server keeps, and whether it keeps nodes from choosing for themselves. Both are tried on a node, as
    /// dry runs.
    async fn cluster(&mut self, client: &Client, impersonates: bool, examined: Option<&ExaminedNode>) {
        let Some(node) = examined.map(ExaminedNode::name) else { return };
        let keeps_source = requests::keeps_source(client, node).await;
        let keeps_source = self.seen("whether this API server keeps spec.configSource (a dry run)", keeps_source);
        self.carrier = keeps_source.map(|keeps| if keeps { Carrier::Native } else { Carrier::Labels });
        if impersonates {
            self.unchecked.push("whether nodes are kept from labelling themselves: not with --as".to_owned());
            return;
        }
        let guarded = requests::guards_labels(client, node).await;
        let what = "whether nodes are kept from labelling themselves (as the node, a dry run)";
        if self.seen(what, guarded) == Some(false) {
            let problem = format!(
                "node {node} may set its own labels under {LABELS}: whoever has a node's credential chooses its configuration"
            );
            let mend = "on the control plane: kube-apiserver --enable-admission-plugins=NodeRestriction --authorization-mode=Node,RBAC";
            self.findings.push(Finding::of_cluster("labels-not-guarded", problem, vec![mend.to_owned()]));
        }
    }

    /// The nodes, the ConfigMaps assigned to them, and whether they may read these.
    async fn examined_nodes(&mut self, client: &Client, examined_nodes: &[ExaminedNode]) {
        let mut maps: BTreeMap<(String, String), Vec<&ExaminedNode>> = BTreeMap::new();
        let newest = newest(examined_nodes);
        if let Some((found, is_problem)) = without_policy(examined_nodes) {
            if is_problem { &mut self.findings } else { &mut self.notes }.push(found);
        }
        for examined in examined_nodes {
            self.findings.extend(examined.findings());
            self.findings.extend(newest.and_then(|newest| examined.is_older(newest)));
            if let Some((_, desired)) = examined.assigned() {
                maps.entry((desired.namespace.clone(), desired.name.clone())).or_default().push(examined);
            }
        }
        self.maps = maps.len();
        let mut labelled: BTreeMap<String, BTreeMap<String, &ExaminedNode>> = BTreeMap::new();
        for ((namespace, name), examined_nodes) in &maps {
            let keys = requests::keys(client, namespace, name).await;
            if let Some(keys) = self.seen(&format!("ConfigMap {namespace}/{name}"), keys) {
                let found = examined_nodes.iter().filter_map(|examined| examined.config_map(keys.as_ref()));
                self.findings.extend(found);
            }
            let by_label =
                |examined: &&&ExaminedNode| examined.assigned().is_some_and(|(carrier, _)| carrier == Carrier::Labels);
            if let Some(examined) = examined_nodes.iter().find(by_label) {
                labelled.entry(namespace.clone()).or_default().insert(name.clone(), examined);
            }
        }
        // Where nothing is assigned yet, it will be in the user's namespace.
        if self.carrier == Some(Carrier::Labels) && !examined_nodes.is_empty() && labelled.is_empty() {
            labelled.entry(client.namespace.clone()).or_default();
        }
        let anybody = examined_nodes.first().map_or(requests::NOBODY, ExaminedNode::name);
        for (namespace, names) in &labelled {
            let looked = self.readers(client, namespace, names, anybody).await;
            self.seen(&format!("whether nodes may read ConfigMaps in {namespace} (SubjectAccessReview)"), looked);
        }
    }

    /// Where there is no CRD of them, nobody misses it.
    async fn pools(&mut self, client: &Client) {
        let group = requests::pools_group(client).await;
        let Some(Some(group)) = self.seen("whether pools are served", group) else { return };
        if let Some(found) = not_served(&group) {
            return self.findings.push(found);
        }
        let pools = requests::pools(client).await;
        let Some((pools, lease)) = self.seen("pools and their controller", pools) else { return };
        let mut examined = ExaminedPools { pools: &pools, lease: &lease, image: None, now: jiff::Timestamp::now() };
        if let Some(holder) = examined.holder() {
            let image = requests::image(client, holder).await;
            self.image = self.seen("the controller's image", image).flatten();
        }
        examined.image = self.image.as_deref();
        self.findings.extend(examined.findings());
        self.pools = Some((pools.len(), examined.holder().map(str::to_owned)));
    }

    /// All of the namespace, or else each that is assigned.
    async fn readers(
        &mut self,
        client: &Client,
        namespace: &str,
        names: &BTreeMap<String, &ExaminedNode>,
        anybody: &str,
    ) -> Result<(), ApiError> {
        let general = requests::cannot(client, anybody, namespace, None).await?;
        if general.is_empty() {
            return Ok(());
        }
        if names.is_empty() && !requests::may_read_some(client, anybody, namespace).await? {
            self.findings.extend(rights::nodes_cannot(&general, namespace, None));
        }
        for (name, examined) in names {
            let verbs = requests::cannot(client, examined.name(), namespace, Some(name)).await?;
            self.findings.extend(rights::nodes_cannot(&verbs, namespace, Some(name)));
        }
        Ok(())
    }

    /// What could be looked at; what could not is said.
    fn seen<T>(&mut self, what: &str, result: Result<T, ApiError>) -> Option<T> {
        let not_seen = |error: &ApiError| self.unchecked.push(format!("{what}: {}", output::plain(&error.cause())));
        result.inspect_err(not_seen).ok()
    }

    fn code(&self) -> ExitCode {
        match (self.findings.is_empty(), self.unchecked.is_empty()) {
            (false, _) => ExitCode::FAILURE,
            (true, false) => ExitCode::from(EXIT_UNCHECKED),
            (true, true) => ExitCode::SUCCESS,
        }
    }

    fn document(&self) -> Value {
        json!({
            "nodes": self.nodes,
            "configMaps": self.maps,
            "carrier": self.carrier.map(carrier_name),
            "pools": self.pools.as_ref().map(|(count, holder)| json!({"count": count, "controller": holder, "image": self.image})),
            "findings": self.findings.iter().map(Finding::document).collect::<Vec<_>>(),
            "notes": self.notes.iter().map(Finding::document).collect::<Vec<_>>(),
            "couldNotLook": self.unchecked,
        })
    }

    fn text(&self, out: Out) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            text.push_str(&output::headed(out, Tone::Bad, &whom(&finding.nodes), &finding.problem));
            for command in &finding.mend {
                let _ = writeln!(text, "    {command}");
            }
            if finding.nodes.len() > 1 {
                let _ = writeln!(text, "    and so for the others: -o json names them");
            }
        }
        for note in &self.notes {
            let (nodes, mend) = (count(note.nodes.len(), "node"), note.mend.join("; "));
            let line = format!("{nodes} ({}): {}; {mend}", first_of(&note.nodes, SHOWN_IN_NOTE), note.problem);
            text.push_str(&output::headed(out, Tone::Plain, "note", &line));
        }
        for unchecked in &self.unchecked {
            text.push_str(&output::headed(out, Tone::Open, "could not look", unchecked));
        }
        let carrier = self.carrier.map(|carrier| format!("; assignments are written as {}", carrier_name(carrier)));
        let (nodes, maps) = (count(self.nodes, "node"), count(self.maps, "assigned ConfigMap"));
        let pools = self.pools.as_ref().map(|(pools, holder)| {
            let by = holder.as_ref().map(|holder| format!(", carried out by {}", output::plain(holder)));
            let image = self.image.as_ref().map(|image| format!(", image {image}"));
            format!("; {}{}{}", count(*pools, "pool"), by.unwrap_or_default(), image.unwrap_or_default())
        });
        let (tone, verdict) = match self.findings.len() {
            0 if self.unchecked.is_empty() => (Tone::Good, "nothing is missing".to_owned()),
            findings => (Tone::Plain, count(findings, "finding")),
        };
        let (carrier, pools) = (carrier.unwrap_or_default(), pools.unwrap_or_default());
        let looked = format!("{nodes}, {maps}, {} rights looked at{carrier}{pools}", self.rights);
        text + &output::headed(out, tone, &verdict, &looked)
    }
}

fn carrier_name(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Native => "spec.configSource",
        Carrier::Labels => "labels",
    }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn whom(nodes: &[String]) -> String {
    if nodes.is_empty() {
        return "cluster".to_owned();
    }
    first_of(&nodes.iter().map(|name| format!("node/{name}")).collect::<Vec<_>>(), SHOWN)
}

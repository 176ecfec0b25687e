//! Preflight on request, as it stands on a Node: an annotation names a ConfigMap, and another has the answer of the node's
//! own kubelet, which goes on undisturbed. Whoever reads the answer takes it from here: a node may lie.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::assignment::parse_reference;
use crate::bounds;
use crate::source::{ConfigMapRef, Source, is_safe_component};

/// The Node annotation that says what is to be judged, as [`PreflightRequest`] has it.
pub const REQUEST_ANNOTATION: &str = "kubelet-supervisor.io/preflight";

/// The Node annotation that holds the answer.
pub const ANSWER_ANNOTATION: &str = "kubelet-supervisor.io/preflight-status";

/// Bytes of the answer: thousands of Nodes are listed and watched with it.
pub const MAX_ANSWER: usize = 1024;

/// Pods that an answer names.
const NAMED_PODS: usize = 10;

/// Of a request that cannot be read so much is said again.
const ECHO: usize = 128;

/// What is to be judged: `NAMESPACE/NAME[/KEY][@UID/RESOURCEVERSION][#TOKEN]`. With a version it is
/// these very bytes; another token is another request, so that the same is judged anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreflightRequest {
    /// The ConfigMap and its key.
    pub reference: ConfigMapRef,
    /// Its uid and resourceVersion; `None`: whatever is there.
    pub version: Option<(String, String)>,
    /// Whatever tells it from another request for the same.
    pub token: Option<String>,
}

impl PreflightRequest {
    /// Asks for this version.
    #[must_use]
    pub fn of(source: &Source) -> Self {
        let version = Some((source.uid.clone(), source.resource_version.clone()));
        Self { reference: source.reference.clone(), version, token: None }
    }

    /// Reads the annotation.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > bounds::MAX_TEXT {
            return Err(format!("longer than {} bytes", bounds::MAX_TEXT));
        }
        let split = |text: &str, at: char| text.split_once(at).map(|(head, tail)| (head.to_owned(), tail.to_owned()));
        let (text, token) = split(text, '#').map_or((text.to_owned(), None), |(text, token)| (text, Some(token)));
        if let Some(token) = token.as_ref().filter(|token| !is_safe_component(token)) {
            return Err(format!("{token:?} cannot be a token: A-Z, a-z, 0-9, -, _ and ."));
        }
        let (reference, version) = split(&text, '@').map_or((text, None), |(text, version)| (text, Some(version)));
        let version = version.as_ref().map(|version| match version.split_once('/') {
            Some((uid, version)) if is_safe_component(uid) && is_safe_component(version) => {
                Ok((uid.to_owned(), version.to_owned()))
            }
            _ => Err(format!("{version:?} is not UID/RESOURCEVERSION")),
        });
        Ok(Self { reference: parse_reference(&reference)?, version: version.transpose()?, token })
    }

    /// True if this version is what is to be judged.
    #[must_use]
    pub fn is_for(&self, source: &Source) -> bool {
        let same = |(uid, version): &(String, String)| *uid == source.uid && *version == source.resource_version;
        self.reference == source.reference && self.version.as_ref().is_none_or(same)
    }
}

impl fmt::Display for PreflightRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConfigMapRef { namespace, name, kubelet_config_key: key } = &self.reference;
        write!(f, "{namespace}/{name}/{key}")?;
        self.version.as_ref().map_or(Ok(()), |(uid, version)| write!(f, "@{uid}/{version}"))?;
        self.token.as_ref().map_or(Ok(()), |token| write!(f, "#{token}"))
    }
}

crate::named! {
    /// What would become of it on this node.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    pub enum PreflightResult by as_str {
        /// It would be taken up.
        Valid = "Valid",
        /// It cannot be loaded, the kubelet refuses it, or it failed here before.
        Invalid = "Invalid",
        /// It would be refused, unless somebody acknowledges it.
        Hazard = "Hazard",
        /// It would be refused for the pods it would cost, unless somebody acknowledges that.
        PodsLost = "PodsLost",
        /// The node's own policy does not admit it.
        PolicyRefused = "PolicyRefused",
        /// Nobody can tell; the message says why.
        #[default]
        Inconclusive = "Inconclusive",
    }
}

/// A node's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreflightStatus {
    /// The request as it was read; of one that cannot be one, its beginning.
    pub request: String,
    /// What would become of it.
    pub result: PreflightResult,
    /// `UID/RESOURCEVERSION` of what was judged.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Of what it renders to on this node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub digest: String,
    /// Classes of the hazards that nobody acknowledged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hazards: Vec<String>,
    /// Some of the pods that would be lost, as `NAMESPACE/NAME`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// How many they are in all; 0 also where that is the kubelet's choice.
    #[serde(skip_serializing_if = "is_zero")]
    pub pods_lost: usize,
    /// Of the kubelet that judged.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kubelet_version: String,
    /// For people, with the kubelet's own words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl PreflightStatus {
    /// An answer to this request; what else is known of it is added.
    #[must_use]
    pub fn new(request: &str, result: PreflightResult, message: &str) -> Self {
        Self { request: echo(request), result, message: message.to_owned(), ..Self::default() }
    }

    /// True if it is an answer to this annotation.
    #[must_use]
    pub fn answers(&self, request: &str) -> bool {
        self.request == echo(request)
    }

    /// The text of [`ANSWER_ANNOTATION`], in its bounds.
    #[must_use]
    pub fn annotation(&self) -> String {
        let mut said = self.clone().bounded();
        loop {
            let text = serde_json::to_string(&said).unwrap_or_default();
            if text.len() <= MAX_ANSWER {
                return text;
            }
            // What is longest and least needed goes first.
            if said.message.len() > ECHO {
                said.message = bounds::bounded(&said.message, said.message.len() / 2);
            } else if said.pods.pop().is_none() && said.hazards.pop().is_none() {
                said = Self { request: said.request, result: said.result, ..Self::default() };
            }
        }
    }

    /// Reads the annotation's text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self::bounded)
    }

    /// Reads a Node, however odd it is.
    #[must_use]
    pub fn from_node(node: &Value) -> Option<Self> {
        Self::parse(node.pointer("/metadata/annotations")?.get(ANSWER_ANNOTATION)?.as_str()?)
    }

    fn bounded(self) -> Self {
        let texts = |texts: Vec<String>| texts.iter().take(NAMED_PODS).map(|text| bounds::text(text)).collect();
        Self {
            request: bounds::text(&self.request),
            result: self.result,
            version: bounds::text(&self.version),
            digest: bounds::text(&self.digest),
            hazards: texts(self.hazards),
            pods: texts(self.pods),
            pods_lost: self.pods_lost,
            kubelet_version: bounds::bounded(&self.kubelet_version, ECHO),
            message: bounds::text(&self.message),
        }
    }
}

/// What is no request may be anything, and is longer as JSON.
fn echo(request: &str) -> String {
    match PreflightRequest::parse(request) {
        Ok(_) => request.to_owned(),
        Err(_) => bounds::bounded(request, ECHO),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_names_a_config_map_or_very_bytes_of_it() {
        let source = Source {
            reference: parse_reference("n/m/k.yaml").unwrap(),
            uid: "5eed-1".to_owned(),
            resource_version: "7".to_owned(),
        };
        let exact = PreflightRequest::of(&source);
        assert_eq!(exact.to_string(), "n/m/k.yaml@5eed-1/7");
        assert_eq!(PreflightRequest::parse(&exact.to_string()), Ok(exact.clone()));
        let any = PreflightRequest::parse("n/m/k.yaml").unwrap();
        let later = Source { resource_version: "8".to_owned(), ..source.clone() };
        assert!(exact.is_for(&source) && any.is_for(&source) && any.is_for(&later) && !exact.is_for(&later));
        assert_eq!(PreflightRequest::parse("n/m").unwrap().to_string(), "n/m/kubelet");
        let again = PreflightRequest { token: Some("2".to_owned()), ..exact.clone() };
        assert_eq!(PreflightRequest::parse(&again.to_string()), Ok(again.clone()));
        assert!(
            again.is_for(&source)
                && !PreflightStatus::new(&again.to_string(), PreflightResult::Valid, "").answers("n/m")
        );
        let long = format!("n/{}/k@u/{}", "m".repeat(253), "1".repeat(255));
        for bad in [
            "",
            "m",
            "n/M",
            "n/m/k/x",
            "n/m@",
            "n/m@u",
            "n/m@u/",
            "n/m@../1",
            "n/m@u/1/2",
            "n/m@u@1",
            "n/m#",
            "n/m#a b",
            "n/m#1#2",
            "n/m?x=y",
            &long,
        ] {
            assert!(PreflightRequest::parse(bad).is_err(), "{bad:?} was accepted");
        }
    }

    /// As long as all of it can be, and as much longer as JSON and bad will make it.
    #[test]
    fn an_answer_is_bounded_and_read_back() {
        let longest = format!("{}/{}/{}", "n".repeat(63), "m".repeat(200), "k".repeat(246));
        for (request, filler) in [("n/m/k", "x"), (longest.as_str(), "\"\\"), ("\"\\\u{1b}\u{202e}", "\u{1b}ä\n")] {
            let (long, pods) = (filler.repeat(2000), vec![filler.repeat(150); 30]);
            let status = PreflightStatus {
                version: long.clone(),
                digest: long.clone(),
                hazards: pods.clone(),
                pods,
                pods_lost: 30,
                kubelet_version: long.clone(),
                ..PreflightStatus::new(request, PreflightResult::PodsLost, &long)
            };
            let text = status.annotation();
            assert!(text.len() <= MAX_ANSWER, "{}", text.len());
            let read = PreflightStatus::parse(&text).unwrap();
            assert_eq!((read.result, read.answers(request)), (PreflightResult::PodsLost, true));
            assert_eq!(read.annotation(), text, "it is said again in the same words");
        }
    }

    #[test]
    fn a_lying_node_is_read_within_bounds() {
        let long = "\u{1b}]0;x\u{7}".repeat(20_000);
        let lie = json!({"request": long, "result": "Valid", "version": long, "digest": long, "hazards": vec![&long; 100],
            "pods": vec![&long; 100], "podsLost": 5, "kubeletVersion": long, "message": long, "more": [1]});
        let node = json!({"metadata": {"annotations": {ANSWER_ANNOTATION: lie.to_string()}}});
        let PreflightStatus { request, version, digest, hazards, pods, kubelet_version, message, .. } =
            PreflightStatus::from_node(&node).unwrap();
        assert_eq!((hazards.len(), pods.len()), (NAMED_PODS, NAMED_PODS));
        let texts = [request, version, digest, kubelet_version, message];
        for text in texts.into_iter().chain(hazards).chain(pods) {
            assert!(text.len() <= bounds::MAX_TEXT && !text.chars().any(char::is_control), "{text}");
        }
        for odd in [json!("x"), json!({"result": "Superb"}), json!({"podsLost": -1}), json!([1])] {
            let node = json!({"metadata": {"annotations": {ANSWER_ANNOTATION: odd.to_string()}}});
            assert_eq!(PreflightStatus::from_node(&node), None, "{odd}");
        }
        assert_eq!(PreflightStatus::from_node(&json!({"metadata": {"annotations": {ANSWER_ANNOTATION: 7}}})), None);
    }
}

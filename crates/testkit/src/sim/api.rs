//! The API server: up or not, in its moods, with its objects and all their versions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kubelet_config::assignment::Assignment;
use kubelet_config::duration::GoDuration;
use kubelet_config::flags::KEY_SUFFIX;
use kubelet_config::source::{ConfigAnnotations, ConfigMapRef, Payload, Source};
use kubelet_supervisor::machine::{FetchError, Input};

use super::silence::OneSide;
use super::world::{Coming, Content, KEY, NAMESPACE, Outside, ms};

/// An annotation that asks for nothing that is a duration.
pub const UNCLEAR: &str = "soon";

/// How the API server serves while it is up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mood {
    /// Answers may take up to 20 s.
    pub late: bool,
    /// Every second answer is lost, until the watch is renewed.
    pub lossy: bool,
    /// Every answer comes twice.
    pub twice: bool,
}

/// One version of a ConfigMap.
#[derive(Clone, Debug)]
pub struct Version {
    pub name: String,
    pub content: Content,
    /// It is laid over the local file.
    pub overlay: bool,
    pub payload: Arc<Payload>,
}

impl Version {
    pub(super) fn is_unclear(&self) -> bool {
        let asked = &self.payload.annotations;
        asked.confirm_within.iter().chain(&asked.courtesy).any(|text| text == UNCLEAR)
    }
}

impl Outside {
    /// True if the node's own requests are answered.
    pub fn reaches_api(&self) -> bool {
        self.api_up && !self.process.as_ref().is_some_and(|process| process.cuts_off)
    }

    /// True if the supervisor's watches bring news.
    pub fn hears_api(&self) -> bool {
        self.reaches_api() && self.silence.one_side != Some(OneSide::Watches) && !self.workers.absent
    }

    /// True if what the supervisor asks is answered.
    pub fn answers_queries(&self) -> bool {
        self.reaches_api() && self.silence.one_side != Some(OneSide::Queries)
    }

    /// What the supervisor is told of what it is to have.
    pub fn note_input(&mut self, input: &Input) {
        self.account.told_last = Some(self.now);
        match input {
            Input::Node(desired) if *desired != Assignment::Unknown => {
                self.known_assignment = desired.clone();
                if *desired == Assignment::Local {
                    self.account.reset_requested = true;
                    self.account.reset_last = Some(self.now);
                    self.account.cleared = None;
                }
            }
            Input::ConfigMap(payload) => {
                self.asked.note_told(&payload.uid, &payload.resource_version);
                let Assignment::Map(assigned) = &self.known_assignment else { return };
                if payload.name != assigned.name {
                    return;
                }
                let source = payload.resolve(assigned);
                if let Some(cleared) = &mut self.account.cleared {
                    cleared.overtaken |= cleared.source != source;
                }
                let version = self.version_of(&source);
                let content = version.map(|version| version.content.over(self.own()));
                let offered = &mut self.account.offered;
                offered.extend(content.filter(|content| !offered.contains(content)));
            }
            _ => {}
        }
    }

    /// The supervisor is told what is so.
    fn is_set_right(&mut self) {
        if std::mem::take(&mut self.account.misled) {
            self.account.set_right = Some(self.now);
        }
    }

    pub fn node_input(&mut self) -> Option<Input> {
        let input = self.hears_api().then(|| Input::Node(self.desired.clone()))?;
        if !matches!(self.desired, Assignment::Map(_)) {
            self.is_set_right();
        }
        self.note_input(&input);
        Some(input)
    }

    pub fn map_input(&mut self) -> Option<Input> {
        let watched = self.watched.as_ref()?;
        if !self.hears_api() {
            let lost = Input::ConfigMapFailed { why: "connection refused".to_owned(), definite: false };
            return (!self.reaches_api()).then_some(lost);
        }
        let input = match self.maps.get(&watched.name) {
            Some(map) => Input::ConfigMap(self.history[&map.uid][&map.resource_version].payload.clone()),
            None => Input::ConfigMapFailed { why: "not found".to_owned(), definite: true },
        };
        self.is_set_right(); // the Node is told before it
        self.note_input(&input);
        Some(input)
    }

    pub fn fetched(&mut self, map: &ConfigMapRef) -> Result<Arc<Payload>, FetchError> {
        let failed = |why: &str, definite| Err(FetchError { why: why.to_owned(), definite });
        match self.maps.get(&map.name) {
            _ if !self.hears_api() => {
                self.asked.hinder(self.now);
                failed("connection refused", false)
            }
            Some(map) => Ok(self.history[&map.uid][&map.resource_version].payload.clone()),
            None => failed("not found", true),
        }
    }

    /// An answer is on its way, as the API server's mood is.
    pub fn deliver(&mut self, after: Duration, what: Coming) {
        let mood = self.mood;
        let mut delay = after;
        if mood.late {
            delay += ms(self.rng.below(20_000));
        }
        if mood.lossy && self.rng.one_in(2) {
            delay += ms(30_000 + self.rng.below(60_000)); // the watch is renewed
        }
        if mood.twice {
            let again = delay + ms(self.rng.below(3000));
            self.schedule(again, what.clone());
        }
        self.schedule(delay, what);
    }

    /// The API server's news are on their way, if it is up.
    pub fn hear(&mut self) {
        self.changed_last = self.now;
        let delay = ms(5 + self.rng.below(20));
        self.deliver(delay, Coming::Node);
        self.deliver(delay + ms(1), Coming::Map);
        self.hear_requests();
    }

    pub fn set_api(&mut self, up: bool) {
        self.api_up = up;
        self.hear();
        if let Some(pid) = self.process.as_ref().map(|process| process.pid).filter(|_| up) {
            // The kubelet posts its Node as soon as it can.
            self.schedule(ms(10_000), Coming::Heartbeat(pid, false));
        }
    }

    /// It says what is not so, and some time later what is.
    pub fn lie(&mut self, input: Input) {
        let delay = ms(5 + self.rng.below(2000));
        self.schedule(delay, Coming::Says(input));
        let truth = delay + ms(1 + self.rng.below(20_000));
        self.schedule(truth, Coming::Node);
        self.schedule(truth + ms(1), Coming::Map);
    }

    pub fn set_desired(&mut self, desired: Assignment) {
        self.desired = desired;
        self.hear();
    }

    pub fn reference(name: &str, key: &str) -> ConfigMapRef {
        ConfigMapRef { namespace: NAMESPACE.to_owned(), name: name.to_owned(), kubelet_config_key: key.to_owned() }
    }

    pub fn assign(&mut self, name: &str) {
        self.set_desired(Assignment::Map(Self::reference(name, KEY)));
    }

    /// Creates or replaces a ConfigMap.
    pub fn put(&mut self, name: &str, text: &str) {
        self.put_as(name, text, false);
    }

    /// Creates or replaces a ConfigMap, which may be laid over the local file.
    pub fn put_as(&mut self, name: &str, text: &str, overlay: bool) {
        let data = [(KEY, text), ("other", text)].map(|(key, text)| (key.to_owned(), text.to_owned()));
        let flags = Content::of(text).flags();
        let flags = flags.map(|flags| [KEY, "other"].map(|key| (format!("{key}{KEY_SUFFIX}"), flags.clone())));
        self.versions += 1;
        let uid = self.maps.get(name).map_or_else(|| format!("uid-{}", self.versions), |map| map.uid.clone());
        let payload = Payload {
            namespace: NAMESPACE.to_owned(),
            name: name.to_owned(),
            uid: uid.clone(),
            resource_version: self.versions.to_string(),
            data: data.into_iter().chain(flags.into_iter().flatten()).collect(),
            binary_keys: BTreeSet::new(),
            annotations: ConfigAnnotations { merge: overlay.then(|| "overlay".to_owned()), ..self.annotations.clone() },
        };
        let version =
            Version { name: name.to_owned(), content: Content::of(text), overlay, payload: Arc::new(payload.clone()) };
        self.history.entry(uid).or_default().insert(payload.resource_version.clone(), version);
        self.maps.insert(name.to_owned(), payload);
        self.hear();
    }

    /// A label edit: a new resourceVersion of the same content.
    pub fn touch(&mut self, name: &str) {
        let map = self.maps.get(name).map(|map| (map.data[KEY].clone(), map.annotations.merge.is_some()));
        if let Some((text, overlay)) = map {
            self.put_as(name, &text, overlay);
        }
    }

    pub fn delete(&mut self, name: &str) {
        self.maps.remove(name);
        self.hear();
    }

    /// It cannot be told what its annotations ask for.
    pub(super) fn is_unclear(&self, source: &Source) -> bool {
        self.version_of(source).is_some_and(Version::is_unclear)
    }

    /// How long it waits for a confirmation, if it does.
    pub(super) fn confirm_within(&self, source: &Source) -> Option<Duration> {
        let asked = self.version_of(source).and_then(|version| version.payload.annotations.confirm_within.as_ref());
        let asked = asked.map(|text| text.parse::<GoDuration>().map_or(Duration::ZERO, |within| within.0));
        asked.or(self.account.confirm_within).filter(|within| !within.is_zero())
    }

    /// The version the Node wants, if there is one.
    pub fn desired_source(&self) -> Option<Source> {
        let Assignment::Map(reference) = &self.desired else { return None };
        Some(self.maps.get(&reference.name)?.resolve(reference))
    }

    pub fn version_of(&self, source: &Source) -> Option<&Version> {
        self.history.get(&source.uid)?.get(&source.resource_version)
    }

    /// What a source holds; without one, what the local file holds.
    pub fn content_of(&self, source: Option<&Source>) -> Option<Content> {
        match source {
            Some(source) => {
                let version = self.version_of(source)?;
                version.payload.data.get(&source.reference.kubelet_config_key)?;
                Some(if version.overlay { version.content.over(self.own()) } else { version.content })
            }
            None => Some(Content::of(&self.local)),
        }
    }

    /// The ConfigMap that had this content last.
    pub(super) fn name_of(&self, content: Content) -> String {
        let all = self.history.values().flat_map(|versions| versions.values());
        let held = all.filter(|it| it.content == content || it.overlay && it.content.over(self.own()) == content);
        let last = held.max_by_key(|it| it.payload.resource_version.parse::<u64>().unwrap_or_default());
        last.map_or_else(|| "unknown".to_owned(), |version| version.name.clone())
    }

    /// The local file, or what it was before it was torn.
    pub(super) fn own(&self) -> Content {
        Content::of(self.torn_local.as_ref().unwrap_or(&self.local))
    }

    /// True if this is what the local file says, or said in another edition.
    pub(super) fn is_own(&self, content: Content) -> bool {
        self.own().over(content) == content || self.content_of(None) == Some(content)
    }

    /// An administrator edits the local file, tears it, or mends it.
    pub fn edit_local(&mut self, tear: bool) {
        let own = self.own();
        match self.torn_local.take() {
            Some(text) => self.local = text,
            None if tear => {
                self.torn_local = Some(std::mem::replace(&mut self.local, "kind: [torn".to_owned()));
            }
            None => self.local = own.behaviour.local_text((own.base + 1) % 3),
        }
        self.local_edited = Some(self.now);
        self.schedule(ms(300), Coming::LocalFileTouched);
        self.changed_last = self.now;
    }

    /// Some version of a map that is not its newest, or is gone.
    pub fn old_version(&mut self, name: &str) -> Option<Arc<Payload>> {
        let versions = self.history.values().flat_map(|versions| versions.values());
        let old: Vec<Arc<Payload>> =
            versions.filter(|version| version.name == name).map(|version| version.payload.clone()).collect();
        if old.is_empty() {
            return None;
        }
        let choice = usize::try_from(self.rng.below(old.len() as u64)).unwrap();
        Some(old[choice].clone())
    }
}

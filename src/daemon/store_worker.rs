//! Serves the requests to the store: the one place where store and rendering meet. It waits for the disk, so the daemon has
//! it on a thread.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::admission::Policy;
use super::render::configuration;
use crate::adapters::fsx::Disk;
use crate::adapters::store::{FsStore, GivenFiles, StoredConfig};
use crate::machine::model::{Damage, LoadTarget, RenderError, Rendered, Verification};
use crate::machine::records::{Stored, Version};
use crate::machine::{Answer, Input};
use crate::ports::{Checkpoint, Local, Store, StoreError, StoreRequest, read_whole};
use kubelet_config::digest::Digest;
use kubelet_config::flags::KubeletArgs;
use kubelet_config::policy::{Admission, Signed};
use kubelet_config::rendering::{self, Configuration, Effective};
use kubelet_config::source::{ConfigAnnotations, Source};

/// The kubelet's `--root-dir`, also if the command line has none (options.go, v1.20.2).
pub(super) fn root_dir(args: &KubeletArgs) -> &str {
    args.last("root-dir").unwrap_or("/var/lib/kubelet")
}

/// The store, the local files and the kubelet's command line.
#[derive(Debug)]
pub struct StoreWorker<D, L> {
    store: FsStore<D>,
    local: L,
    args: KubeletArgs,
    /// A standalone kubelet has its local configuration even if the store holds another, as with native.
    pub standalone: bool,
    /// The last request was not served to its end.
    interrupted: bool,
}

impl<D: Disk, L: Local> StoreWorker<D, L> {
    /// The worker for a kubelet with these flags.
    pub fn new(store: FsStore<D>, local: L, args: KubeletArgs) -> Self {
        Self { store, local, args, standalone: false, interrupted: false }
    }

    /// Serves a request to its end; gives the answers.
    pub fn serve(&mut self, request: StoreRequest) -> Vec<Input> {
        if std::mem::replace(&mut self.interrupted, true) {
            self.store.forget(); // it panicked
        }
        let answers = self.answers(request);
        self.interrupted = false;
        answers
    }

    fn answers(&mut self, request: StoreRequest) -> Vec<Input> {
        let plain = |result: Result<(), StoreError>| result.map_err(|error| error.to_string());
        let answer = match request {
            StoreRequest::ReadRecords(ticket) => {
                let stored = if self.standalone { Stored::empty() } else { self.store.load() };
                Input::Answer(ticket, Answer::RecordsRead(Box::new(stored), self.local.kubelet_id()))
            }
            // What an earlier kubelet here was assigned is left as it is: that this one is standalone may be a mistake.
            StoreRequest::Record(ticket, _) if self.standalone => Input::Answer(ticket, Answer::Recorded(Ok(()))),
            StoreRequest::Collect(..) if self.standalone => return Vec::new(),
            StoreRequest::Record(ticket, records) => {
                Input::Answer(ticket, Answer::Recorded(plain(self.store.record(&records))))
            }
            StoreRequest::Save(ticket, source, payload) => match self.store.has_other_bytes(&source, &payload) {
                Ok(true) => Input::Answer(ticket, Answer::OtherBytesSaved),
                Ok(false) => Input::Answer(ticket, Answer::Saved(plain(self.store.save(&source, &payload)))),
                Err(error) => Input::Answer(ticket, Answer::Saved(Err(error.to_string()))),
            },
            StoreRequest::SaveAnew(ticket, source, payload) => {
                Input::Answer(ticket, Answer::Saved(plain(self.store.save(&source, &payload))))
            }
            StoreRequest::JudgeNamespace(ticket, namespace) => {
                Input::Answer(ticket, Answer::NamespaceJudged(Ok(Policy::read(&self.local).of_namespace(&namespace))))
            }
            StoreRequest::Load(ticket, target) => {
                // The binary as it was before: if it changes meanwhile, what comes of this is not known of the new one.
                let kubelet = self.local.kubelet_id();
                Input::Answer(ticket, Answer::Loaded(kubelet, self.load(&target)))
            }
            StoreRequest::Verify(ticket, _) if self.standalone => {
                Input::Answer(ticket, Answer::Verified(Verification::default()))
            }
            StoreRequest::Verify(ticket, versions) => Input::Answer(ticket, Answer::Verified(self.verify(&versions))),
            StoreRequest::SwapStateFiles(ticket, files) if self.local.boot_time() >= files.until => {
                Input::Answer(ticket, Answer::StateFilesSwapped(Err("nobody waits for it any more".to_owned())))
            }
            StoreRequest::SwapStateFiles(ticket, files) => {
                let found = self.store.swap_state_files(&files, root_dir(&self.args));
                Input::Answer(ticket, Answer::StateFilesSwapped(found.map_err(|error| error.to_string())))
            }
            StoreRequest::Append(mut entry) => {
                let appended = plain(self.store.append(&entry).map(|number| entry.number = number));
                Input::Appended(entry, appended)
            }
            StoreRequest::Unreported => {
                let entries = self.store.unreported().into_iter();
                return entries.map(|entry| Input::Appended(Box::new(entry), Ok(()))).collect();
            }
            StoreRequest::Reported(number) => {
                self.store.reported(number);
                return Vec::new();
            }
            StoreRequest::ProbeDisk => {
                self.store.probe_disk();
                return Vec::new();
            }
            StoreRequest::Collect(sources, digests) => {
                if let Err(why) = self.store.collect(&sources, &digests) {
                    tracing::warn!("old checkpoints and configurations cannot be removed: {why}");
                }
                return Vec::new();
            }
        };
        vec![answer]
    }

    /// A read that fails is the disk's, and no damage.
    fn verify(&mut self, versions: &BTreeSet<Version>) -> Verification {
        let record = self.store.mend_record();
        let record = record.map(|(what, mended)| Damage {
            what,
            source: None,
            content: None,
            mended: mended.map_err(|why| why.to_string()),
        });
        let mut found = Verification { damage: record.into_iter().collect(), is_partial: false };
        for Version { source, digest } in versions {
            if let Some(digest) = digest {
                match self.store.open_config(digest) {
                    Err(RenderError::Checkpoint(what)) => {
                        let mended = self.render(source, Some(digest)).map(drop).map_err(|error| error.to_string());
                        let (source, content) = (Some(source.clone()), Some(digest.clone()));
                        found.damage.push(Damage { what, source, content, mended });
                    }
                    opened => found.is_partial |= opened.is_err(),
                }
            }
            match self.store.verify(source) {
                Err(RenderError::Checkpoint(what)) => {
                    let mended = Err("its source alone has these bytes".to_owned());
                    found.damage.push(Damage { what, source: Some(source.clone()), content: None, mended });
                }
                checked => found.is_partial |= checked.is_err(),
            }
        }
        found
    }

    fn load(&mut self, target: &LoadTarget) -> Result<Rendered, RenderError> {
        match target {
            LoadTarget::Local => {
                let (out, annotations, admission) = self.local_configuration()?;
                Ok(self.rendered(out, GivenFiles::default(), annotations, admission))
            }
            LoadTarget::Source(source) => self.render(source, None),
            LoadTarget::Unassigned(source, payload) => {
                // It names its own files by the directory of its configuration alone.
                let checkpoint = Checkpoint {
                    dir: self.store.configs_dir().display().to_string(),
                    files: payload.data.clone(),
                    binary_keys: payload.binary_keys.clone(),
                    annotations: payload.annotations.clone(),
                };
                let found = self.configuration(checkpoint, source, None)?;
                self.write(source, found)
            }
            LoadTarget::DryRun(source) => {
                let (out, annotations, admission) = match source {
                    Some(source) => self.configuration(self.store.open(source)?, source, None)?,
                    None => read_whole(&self.local, || self.local_configuration())?,
                };
                Ok(self.rendered(out, GivenFiles::default(), annotations, admission))
            }
            LoadTarget::Content(digest, source) => match self.store.load_config(digest) {
                Ok(found) => Ok(self.stored(digest, source, &found)),
                Err(error) => self.render(source, Some(digest)).map_err(|_| error),
            },
        }
    }

    fn local_configuration(&self) -> Result<(Configuration, ConfigAnnotations, Admission), RenderError> {
        let out = configuration(None, None, &self.args, &self.local)?;
        Ok((out, ConfigAnnotations::default(), Policy::read(&self.local).of_local()))
    }

    /// What a checkpoint renders to now, and whether the node's policy admits it.
    fn configuration(
        &self,
        checkpoint: Checkpoint,
        source: &Source,
        wanted: Option<&Digest>,
    ) -> Result<(Configuration, ConfigAnnotations, Admission), RenderError> {
        let policy = Policy::read(&self.local);
        let signed = policy.signed_unread(&checkpoint, source, self.local.default_merge())?;
        let configs = self.store.configs_dir().display().to_string();
        let payload = policy.payload(&checkpoint, source);
        let render = || configuration(Some(payload), Some(&configs), &self.args, &self.local);
        // A digest that is known beforehand proves what was read.
        let out =
            if source.is_local_files() || wanted.is_some() { render()? } else { read_whole(&self.local, render)? };
        let judged = (&out.effective, &out.overrides);
        let admission = policy.admission(Some(source), judged, Ok(signed), &self.args, &self.local);
        Ok((out, policy.limited(checkpoint.annotations), admission))
    }

    /// Renders a checkpoint, and makes what comes out durable, if that is the content wanted.
    fn render(&mut self, source: &Source, wanted: Option<&Digest>) -> Result<Rendered, RenderError> {
        let found = self.configuration(self.store.open(source)?, source, wanted)?;
        if wanted.is_some_and(|wanted| *wanted != found.0.digest) {
            return Err(RenderError::Checkpoint("it renders to other content now".to_owned()));
        }
        self.write(source, found)
    }

    fn write(
        &mut self,
        source: &Source,
        (out, annotations, admission): (Configuration, ConfigAnnotations, Admission),
    ) -> Result<Rendered, RenderError> {
        // JSON is YAML to the kubelet, and cannot be misquoted.
        let text = format!("{:#}", out.value);
        let written = self.store.write_config(&out, &text);
        let signed = written.and_then(|given| {
            self.store.sign_config(&out.digest, admission.signed.as_ref())?; // a start asks for it
            Ok(given)
        });
        let given = signed.map_err(|error| RenderError::Internal(error.to_string()))?;
        let rendered = self.rendered(out, given, annotations, admission);
        Ok(Rendered { is_local_files: source.is_local_files(), ..rendered })
    }

    fn rendered(
        &self,
        out: Configuration,
        given: GivenFiles,
        annotations: ConfigAnnotations,
        admission: Admission,
    ) -> Rendered {
        let ignores_eviction = self.args.with(&out.overrides).ignores_eviction();
        Rendered {
            digest: out.digest,
            path: given.config,
            overrides: out.overrides,
            config_dir: given.config_dir,
            healthz: out.healthz,
            notes: out.notes,
            problems: out.problems,
            shadowed: out.shadowed,
            runtime: self.args.runtime_socket(&out.effective, self.local.kubelet_minor()),
            effective: Arc::new(out.effective),
            ignores_eviction,
            annotations,
            admission,
            is_local_files: false,
        }
    }

    /// The bytes are what they were; the unit's flags over them are today's. The local files do not matter.
    fn stored(&mut self, digest: &Digest, source: &Source, found: &StoredConfig) -> Rendered {
        let args = self.args.with(&found.overrides);
        let policy = Policy::read(&self.local);
        let signed = self.signed_before(digest, source, found, &policy);
        let Effective { value, healthz } = {
            let merges = !found.drop_ins.is_empty();
            rendering::effective(&found.value, &found.drop_ins, (&args, merges), self.local.kubelet_minor())
        };
        let judged = (&value, &found.overrides);
        let admission = policy.admission(Some(source), judged, signed, &self.args, &self.local);
        let out = Configuration {
            digest: digest.clone(),
            overrides: found.overrides.clone(),
            healthz,
            effective: value,
            shadowed: found.shadowed.clone(),
            ..Configuration::default()
        };
        let annotations = policy.limited(self.store.annotations(source));
        let rendered = self.rendered(out, found.given.clone(), annotations, admission);
        Rendered { is_local_files: source.is_local_files(), ..rendered }
    }

    /// The signature that was verified on this content, if the policy's keys still have it. What lies under the content's name
    /// says nothing of it, unless it is signed and renders to this very content: the policy may ask for signatures since today.
    fn signed_before(
        &mut self,
        digest: &Digest,
        source: &Source,
        found: &StoredConfig,
        policy: &Policy,
    ) -> Result<Option<Signed>, String> {
        let Some(signatures) = policy.signatures_of(source) else { return Ok(None) };
        let kept = signatures.kept(found.signed.as_ref());
        if matches!(kept, Ok(Some(_))) {
            return kept;
        }
        let by_checkpoint = self.render(source, Some(digest)).ok().and_then(|rendered| rendered.admission.signed);
        by_checkpoint.map_or(kept, |signed| Ok(Some(signed)))
    }
}

/// Where nothing is lost by waiting: the simulator.
impl<D: Disk, L: Local> Store for StoreWorker<D, L> {
    fn submit(&mut self, request: StoreRequest) -> Vec<Input> {
        self.serve(request)
    }
}

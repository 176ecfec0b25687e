//! The faults.

use testkit::sim::behaviour::Behaviour::{CutsOff, DiesAfter, Good, Invalid};
use testkit::sim::laws::Law;
use testkit::sim::needs::Need::{
    self, Api, Boot, Kill, Policy, Pressure, Put, Request, Rot, Runtime, Sleep, Stall, StandsStill, Unjudged, Wait,
    Worker,
};

use super::Mutant;

/// Laws without a mutant that they alone catch, and why.
pub const SHARED: &[(Law, &str)] = &[
    (
        Law::BadIsDurable,
        "what is not remembered is also started again, in some worlds before it is looked for on the disk",
    ),
    (Law::Known, "a payload that was not assigned is also saved as another"),
    (Law::LastingFaults, "a kubelet that is not there is of law 1 as well"),
    (Law::NothingLost, "with the record of last known good, what failed is lost as well, and what is damaged"),
    (Law::NotWhileAway, "a switch without a baseline does not converge in some worlds"),
    (Law::TrialEnds, "a trial that does not end does not converge either, in a world without faults"),
];

/// What the worlds of a mutant are to have, where chance would take some hundred of them to catch it.
pub const DIRECTED: &[(&str, &[Need])] = &[
    ("a stalled disk starts what the policy forbade since", &[Policy, Stall, Put(Good), Kill, Wait]),
    ("nobody asks what a new policy says of what runs", &[Policy, Put(Good), Wait]),
    ("nobody verifies the store", &[Rot, Put(Good), Wait]),
    ("contact is not asked for", &[Put(CutsOff), Put(Good), Api]),
    ("what is refused is tried", &[Put(Invalid), Put(Good)]),
    ("a runtime that goes later is the configuration's affair", &[Put(Good), Wait, Runtime]),
    ("an API server that is lost later is the configuration's affair", &[Put(Good), Wait, Api]),
    ("boots have no limit", &[Put(CutsOff), Boot]),
    ("a sleep counts as health", &[Sleep, Put(Good)]),
    ("an exit that no worker saw is none", &[Put(Good), Put(DiesAfter(5)), Worker, Kill]),
    ("a change that waits for the API server goes on asking as it did", &[StandsStill, Api, Put(Good)]),
    ("a change does not wait for the end of a pressure", &[Pressure, Put(Good)]),
    ("the runtime is the configuration's affair", &[Put(Good), Wait, Runtime]),
    ("a request waits for an answer that never comes", &[Request, Unjudged]),
];

/// All of them. Each law has one, and but for those above one that it alone catches.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        law: Law::Runs,
        name: "no restart after an exit for a minute",
        file: "machine/process.rs",
        function: "wait_for_restart",
        original: "limits::CRASH.after(self.process.crashes)",
        mutated: "std::time::Duration::from_secs(60)",
    },
    Mutant {
        law: Law::Mended,
        name: "nobody verifies the store",
        file: "machine/drift.rs",
        function: "store_touched",
        original: "self.drift.next.set(self.clock.after(limits::VERIFY_DELAY));",
        mutated: "",
    },
    Mutant {
        law: Law::Flags,
        name: "a start leaves out the flags of its source",
        file: "machine/process.rs",
        function: "start",
        original: "self.effects.push(Effect::Start(given));",
        mutated: "let bare = |given: Box<Rendered>| Box::new(Rendered { overrides: Default::default(), ..*given });
        self.effects.push(Effect::Start(given.map(bare)));",
    },
    Mutant {
        law: Law::RunsInStall,
        name: "a start waits for the store for an hour",
        file: "machine/launch.rs",
        function: "load",
        original: "if runs { limits::STORE_DEADLINE } else { limits::LOAD_DEADLINE }",
        mutated: "std::time::Duration::from_secs(3600)",
    },
    Mutant {
        law: Law::OneKubelet,
        name: "the next start does not wait for the end of the last",
        file: "machine/process.rs",
        function: "end_by",
        original: "self.process.kubelet = Kubelet::Stopping;",
        mutated: "self.process.kubelet = Kubelet::Waiting { until: self.clock.now };",
    },
    Mutant {
        law: Law::OneKubelet,
        name: "another process is taken for the kubelet",
        file: "machine/process.rs",
        function: "started",
        original: "self.new_run(id)",
        mutated: "self.new_run(crate::machine::model::RunId { pid: id.pid + 1, ..id })",
    },
    Mutant {
        law: Law::GoesOn,
        name: "the next worker starts what is wanted, whatever runs",
        file: "machine/launch.rs",
        function: "left_running",
        original: "is_open && self.process.former() == Some(started.run)",
        mutated: "is_open && started.alive && !started.alive",
    },
    Mutant {
        law: Law::GoesOn,
        name: "a record that cannot be read yet costs the kubelet",
        file: "machine/boot.rs",
        function: "tick_reading",
        original: "*self.kubelet() == Kubelet::NotBegun && self.process.former().is_some()",
        mutated: "false",
    },
    Mutant {
        law: Law::PolicyHolds,
        name: "what a new policy forbids is started again",
        file: "machine/policy.rs",
        function: "forbids_start",
        original: "!violation.starts",
        mutated: "violation.starts && !violation.starts",
    },
    Mutant {
        law: Law::PolicyIsTold,
        name: "nobody asks what a new policy says of what runs",
        file: "machine/policy.rs",
        function: "policy_changed",
        original: "self.ask_policy();",
        mutated: "",
    },
    Mutant {
        law: Law::GoodIsKept,
        name: "a worker's begin is a try",
        file: "machine/boot.rs",
        function: "spend_try",
        original: "!self.is_successor()",
        mutated: "true",
    },
    Mutant {
        law: Law::ExitsCount,
        name: "an exit that no worker saw is none",
        file: "machine/trial/progress.rs",
        function: "count_missed_exit",
        original: "attempt.exits.saturating_add(1)",
        mutated: "attempt.exits",
    },
    Mutant {
        law: Law::Standby,
        name: "a standby outlives the change that it is for",
        file: "machine/standby.rs",
        function: "tick_standby",
        original: "self.standby.0.as_ref().is_some_and(|standby| !is_wanted(standby))",
        mutated: "false",
    },
    Mutant {
        law: Law::Standby,
        name: "a standby waits as long as the API server is away",
        file: "machine/change.rs",
        function: "is_change_soon",
        original: "self.waiting_for().is_none()",
        mutated: "self.waiting_for().is_none_or(|hold| *hold == crate::machine::evidence::Hold::ApiServer)",
    },
    Mutant {
        law: Law::Ends,
        name: "the supervisor stays when its kubelet has ended",
        file: "machine/process.rs",
        function: "leave",
        original: "self.effects.push(Effect::Quit);",
        mutated: "",
    },
    Mutant {
        law: Law::Watchdog,
        name: "pings come too seldom",
        file: "machine/liveness.rs",
        function: "tick_watchdog",
        original: "self.clock.after(interval / 2)",
        mutated: "self.clock.after(interval * 3)",
    },
    Mutant {
        law: Law::Known,
        name: "another ConfigMap's payload is taken",
        file: "machine/sync.rs",
        function: "config_map_seen",
        original: "payload.namespace != reference.namespace || payload.name != reference.name",
        mutated: "false",
    },
    Mutant {
        law: Law::ProvenIsNotLeft,
        name: "local is what runs first",
        file: "machine/launch.rs",
        function: "desired",
        original: "self.desired_with(self.records())",
        mutated: r"if self.starts() == 0 && self.records().pin.is_none() {
            None
        } else {
            self.desired_with(self.records())
        }",
    },
    Mutant {
        law: Law::ProvenIsNotLeft,
        name: "last known good is no rung",
        file: "machine/ladder.rs",
        function: "proven",
        original: "last_known_good.into_iter()",
        mutated: "None.into_iter()",
    },
    Mutant {
        law: Law::Durable,
        name: "the files of a configuration are not synced",
        file: "adapters/store.rs",
        function: "write_whole",
        original: "self.disk.sync(&path)?;",
        mutated: "",
    },
    Mutant {
        law: Law::SavedAsGiven,
        name: "it is saved under another version",
        file: "machine/change.rs",
        function: "consider",
        original: "(source.clone(), payload.identity())",
        mutated: r#"(Source { resource_version: "1".to_owned(), ..source.clone() }, payload.identity())"#,
    },
    Mutant {
        law: Law::NothingLost,
        name: "another last known good is not synced",
        file: "adapters/store/records.rs",
        function: "record",
        original: "self.write_records(texts(records))",
        mutated: r"{
            let [state, assigned, proven] = texts(records);
            if self.written.last() == Some(&Some(proven.clone())) {
                self.write_records([state, assigned, proven])
            } else {
                let mut result = self.base_dirs();
                let names = [self.state_path(), self.meta_path(META[0]), self.meta_path(META[1])];
                for (path, text) in names.iter().zip([&state, &assigned, &proven]) {
                    let beside = fsx::temporary_beside(path);
                    let written = self.disk.write(&beside, text.as_bytes(), 0o600);
                    let written = written.and_then(|()| self.disk.rename(&beside, path));
                    result = result.and(written.map_err(|error| StoreError::disk(path, error)));
                }
                self.written = [state, assigned, proven].map(Some);
                result
            }
        }",
    },
    Mutant {
        law: Law::RecordsHold,
        name: "what was on record before is said to be on disk",
        file: "machine/record_writer.rs",
        function: "written",
        original: "self.writer.saved = write.records;",
        mutated: "self.writer.saved = self.writer.current.clone();",
    },
    Mutant {
        law: Law::ContentsHold,
        name: "last known good is collected",
        file: "machine/collect.rs",
        function: "collect",
        original: "versions.extend(self.writer.all().flat_map(Records::versions));",
        mutated: "let good = self.records().last_known_good.as_ref();
            versions.extend(self.writer.all().flat_map(Records::versions).filter(|version| Some(*version) != good));",
    },
    Mutant {
        law: Law::Earned,
        name: "a third of the trial is enough",
        file: "machine/verdict.rs",
        function: "has_lasted",
        original: "self.settings.trial_duration.saturating_sub(attempt.earned)",
        mutated: "(self.settings.trial_duration / 3).saturating_sub(attempt.earned)",
    },
    Mutant {
        law: Law::InContact,
        name: "contact is not asked for",
        file: "machine/judgement.rs",
        function: "signs",
        original: "!run.bad.keys().any(|signal| self.requires(*signal)) && self.is_in_contact(run)",
        mutated: "true",
    },
    Mutant {
        law: Law::StoppedForAReason,
        name: "what was proven is stopped",
        file: "machine/trial.rs",
        function: "proven",
        original: "self.collect();",
        mutated: r"self.collect();
        self.stop();",
    },
    Mutant {
        law: Law::EqualCostsNothing,
        name: "last known good is started anew after its test",
        file: "machine/trial/control_test.rs",
        function: "tick_control_test",
        original: "self.propose(records, Proposal::Note);",
        mutated: r"self.propose(records, Proposal::Note);
                        self.stop();",
    },
    Mutant {
        law: Law::NotWhileAway,
        name: "a change does not wait for the API server",
        file: "machine/change/gate.rs",
        function: "tick_gate",
        original: "is_away && asked_everything",
        mutated: "false",
    },
    Mutant {
        law: Law::NotUnderPressure,
        name: "a change does not wait for the end of a pressure",
        file: "machine/change/gate.rs",
        function: "pressure_against",
        original: "self.health.pressure()",
        mutated: "BTreeSet::new()",
    },
    Mutant {
        law: Law::NotUnderPressure,
        name: "a reset does not wait for the end of a pressure",
        file: "machine/change.rs",
        function: "reset_loaded",
        original: "self.running().digest.as_ref() != Some(&rendered.digest)",
        mutated: "false",
    },
    Mutant {
        law: Law::CostsNoPods,
        name: "a change does not wait for pods that any restart would cost",
        file: "machine/change/gate.rs",
        function: "tick_gate",
        original: "lost.filter(|_| !is_urgent)",
        mutated: "lost.filter(|_| false)",
    },
    Mutant {
        law: Law::Courtesy,
        name: "a change waits for as long as there are streams",
        file: "machine/change/gate.rs",
        function: "courtesy_until",
        original: "(!is_over).then_some(until)",
        mutated: "Some(until).filter(|_| is_over || !is_over)",
    },
    Mutant {
        law: Law::BadStaysBad,
        name: "equal content under another name is tried again",
        file: "machine/versions.rs",
        function: "is_about",
        original: "bad == digest",
        mutated: "false",
    },
    Mutant {
        law: Law::BadIsDurable,
        name: "what failed is not remembered",
        file: "machine/versions.rs",
        function: "add",
        original: "self.0.push(new)",
        mutated: "drop(new)",
    },
    Mutant {
        law: Law::ProvenIsNotBad,
        name: "what is proven is marked",
        file: "machine/trial.rs",
        function: "promote",
        original: "records.bad.forget_proven(&attempt.version, self.process.started_kubelet());",
        mutated: r"records.bad = records
            .bad
            .iter()
            .map(|bad| super::records::BadVersion { digest: attempt.version.digest.clone(), ..bad.clone() })
            .collect::<Vec<_>>()
            .into();",
    },
    Mutant {
        law: Law::BootsCount,
        name: "boots have no limit",
        file: "machine/boot.rs",
        function: "spend_try",
        original: "Some(attempt.tries).filter(|tries| *tries >= self.settings.boots)",
        mutated: "Some(attempt.tries).filter(|tries| *tries >= 9)",
    },
    Mutant {
        law: Law::ExitsCount,
        name: "exits have no limit",
        file: "machine/trial.rs",
        function: "resolve_failure",
        original: "exits < limits::TRIAL_EXITS",
        mutated: "exits < 9",
    },
    Mutant {
        law: Law::SickEnds,
        name: "what never comes up goes on",
        file: "machine/verdict.rs",
        function: "failures",
        original: "!run.was_up && self.clock.lasted(run.start_timeout_from, self.settings.start_timeout)",
        mutated: "false",
    },
    Mutant {
        law: Law::RefusedNeverRuns,
        name: "unknown fields are not refused",
        file: "machine/change/impact.rs",
        function: "refused_field_problems",
        original: "self.settings.unknown_fields == UnknownFields::Refuse",
        mutated: "false",
    },
    Mutant {
        law: Law::PolicyHolds,
        name: "a stalled disk starts what the policy forbade since",
        file: "machine/versions.rs",
        function: "note_load",
        original: "rendered.clone_from(latest);",
        mutated: "_ = (rendered, latest);",
    },
    Mutant {
        law: Law::PolicyHolds,
        name: "what the policy refuses is admitted",
        file: "machine/policy.rs",
        function: "of",
        original: "Some(Self { why: admission.denied.clone()?, starts: true })",
        mutated: "None",
    },
    Mutant {
        law: Law::RefusedNeverRuns,
        name: "what is refused is tried",
        file: "machine/change.rs",
        function: "change_verdict",
        original: "self.reject(&version, ConfigError::Validate, &message)",
        mutated: r"{
                self.note_accepted(&rendered.digest);
                self.accepted(*rendered);
            }",
    },
    Mutant {
        law: Law::GoodIsKept,
        name: "what is up may still be late",
        file: "machine/verdict.rs",
        function: "failures",
        original: "!run.was_up && self.clock.lasted(run.start_timeout_from, self.settings.start_timeout)",
        mutated: "self.clock.lasted(run.start_timeout_from, self.settings.start_timeout)",
    },
    Mutant {
        law: Law::NotBlamed,
        name: "a runtime that goes later is the configuration's affair",
        file: "machine/judgement.rs",
        function: "suspension",
        original: "!self.is_attributable(Signal::Runtime)",
        mutated: "false",
    },
    Mutant {
        law: Law::NotBlamed,
        name: "an API server that is lost later is the configuration's affair",
        file: "machine/judgement.rs",
        function: "suspension",
        original: "!self.is_attributable(Signal::ApiServer)",
        mutated: "false",
    },
    Mutant {
        law: Law::NotBlamed,
        name: "the runtime is the configuration's affair",
        file: "machine/judgement.rs",
        function: "is_runtime_away",
        original: "seen.runtime == Some(false)",
        mutated: "false",
    },
    Mutant {
        law: Law::Cleared,
        name: "last known good is healthy, and clears the version",
        file: "machine/trial/control_test.rs",
        function: "tick_control_test",
        original: r#"self.log(Level::Info, format!("{active} lives: the fault was with {}", attempt.version));"#,
        mutated: r#"self.not_to_blame("nothing");
                        return;"#,
    },
    Mutant {
        law: Law::RetryLater,
        name: "a cleared version is not tried again",
        file: "machine/trial/control_test.rs",
        function: "tick_recovery",
        original: "is_healthy || is_waited_for",
        mutated: "is_healthy && self.suspended().is_some()",
    },
    Mutant {
        law: Law::Rests,
        name: "a change that waits for the API server goes on asking as it did",
        file: "machine/change/wait.rs",
        function: "next_question",
        original: "limits::HELD.after(self.asked_again)",
        mutated: "std::time::Duration::from_secs(1)",
    },
    Mutant {
        law: Law::TrialEnds,
        name: "a trial takes ever longer",
        file: "machine/verdict.rs",
        function: "has_lasted",
        original: "self.settings.trial_duration.saturating_sub(attempt.earned)",
        mutated: "(1000 * self.settings.trial_duration).saturating_sub(attempt.earned)",
    },
    Mutant {
        law: Law::Earned,
        name: "a sleep counts as health",
        file: "machine/state.rs",
        function: "advance",
        original: "self.woke_up(now.since(before));",
        mutated: "",
    },
    Mutant {
        law: Law::Confirms,
        name: "nobody need confirm",
        file: "machine/records.rs",
        function: "needs_confirmation",
        original: "self.confirm_within.is_some() && !self.confirmed",
        mutated: "false",
    },
    Mutant {
        law: Law::Confirms,
        name: "nobody need confirm in time",
        file: "machine/trial/confirm.rs",
        function: "tick_confirmation",
        original: "is_over(wait.until)",
        mutated: "false",
    },
    Mutant {
        law: Law::Confirms,
        name: "what a ConfigMap says of a confirmation is read over",
        file: "machine/trial/confirm.rs",
        function: "confirm_within",
        original: "&annotations.confirm_within",
        mutated: "&None",
    },
    Mutant {
        law: Law::Obeys,
        name: "an operator is answered before that is durable",
        file: "machine/operate.rs",
        function: "tick_commands",
        original: "self.propose(records, Proposal::Command(Some(number), execution))",
        mutated: r"{
                    self.effects.push(Effect::Answer(number, Ok(execution.answer)));
                    self.writer.apply_before_write(records);
                }",
    },
    Mutant {
        law: Law::Hung,
        name: "a hung kubelet is one that misses a probe",
        file: "machine/liveness.rs",
        function: "note_observation",
        original: "now.since(since) >= patience",
        mutated: "now.since(since) >= patience / 4",
    },
    Mutant {
        law: Law::Hung,
        name: "a hung kubelet is restarted without a runtime",
        file: "machine/liveness.rs",
        function: "by",
        original: "Some(Self::Runtime)",
        mutated: "None",
    },
    Mutant {
        law: Law::Hung,
        name: "a hung kubelet is restarted again and again",
        file: "machine/liveness.rs",
        function: "restart_hung",
        original: "self.liveness.restarts.saturating_add(1)",
        mutated: "0",
    },
    Mutant {
        law: Law::Hung,
        name: "a kubelet that waits for a disk hangs",
        file: "machine/liveness.rs",
        function: "hung_loaded",
        original: "Some(NoRestart::Stalled)",
        mutated: "None",
    },
    Mutant {
        law: Law::Hung,
        name: "a hung kubelet stays",
        file: "machine/liveness.rs",
        function: "restart_hung",
        original: "self.dump_and_stop();",
        mutated: "",
    },
    Mutant {
        law: Law::Held,
        name: "a freeze is no hold",
        file: "machine/change.rs",
        function: "is_held",
        original: "self.records().pin.is_some() || self.records().frozen",
        mutated: "self.records().pin.is_some()",
    },
    Mutant {
        law: Law::LocalFiles,
        name: "nobody is told what the local file says",
        file: "machine/local_files.rs",
        function: "local_files_read",
        original: "self.local_files.difference = difference;",
        mutated: "drop(difference);",
    },
    Mutant {
        law: Law::TriesAgain,
        name: "what the disk refused is written again much later",
        file: "machine/record_writer.rs",
        function: "write_failed",
        original: "next.grow(limits::RETRY, &self.clock);",
        mutated: "next.put_off(self.clock.after(std::time::Duration::from_secs(100)));",
    },
    Mutant {
        law: Law::StatusIsTrue,
        name: "the status says what is assigned",
        file: "machine/status.rs",
        function: "node_status",
        original: "state.active_in_status().map(|version| version.source.clone())",
        mutated: "state.records().assigned.as_ref().map(|version| version.source.clone())",
    },
    Mutant {
        law: Law::ErrorIsLogged,
        name: "the log has no more than the status",
        file: "machine/publication.rs",
        function: "log_error",
        original: "self.log(Level::Warn, format!(\"{text}: {why}\"));",
        mutated: "self.log(Level::Warn, why.clone());",
    },
    Mutant {
        law: Law::NoSpinning,
        name: "what is past is due",
        file: "machine/clock.rs",
        function: "wake_at",
        original: "at > self.now",
        mutated: "true",
    },
    Mutant {
        law: Law::GivesUp,
        name: "a preflight is waited for",
        file: "machine/change.rs",
        function: "preflight_change",
        original: "self.ask_verdict(Asker::Change, &rendered, afterwards, limits::PREFLIGHT_DEADLINE);",
        mutated: "self.ask_verdict(Asker::Change, &rendered, afterwards, std::time::Duration::from_secs(1 << 30));",
    },
    Mutant {
        law: Law::WallClock,
        name: "a pause depends on the wall clock",
        file: "machine/process.rs",
        function: "wait_for_restart",
        original: "limits::BACKOFF_TRIAL",
        mutated: "std::time::Duration::from_millis(100 + self.clock.now.wall_nanos % 7)",
    },
    Mutant {
        law: Law::LastingFaults,
        name: "a start waits until the record can be written",
        file: "machine/record_writer.rs",
        function: "holds_start",
        original: "self.write.as_ref().is_some_and(|write| !clock.reached(write.holds_start_until))",
        mutated: "self.write.is_some() || self.failing.is_some()",
    },
    Mutant {
        law: Law::Asked,
        name: "what the policy refuses is said to be valid",
        file: "machine/on_request.rs",
        function: "refused_unjudged",
        original: "self.refusal_by_policy(rendered, self.sync.is_request_by_label(&source.reference))",
        mutated: "self.refusal_by_policy(rendered, self.sync.is_request_by_label(&source.reference)).filter(|why| why.is_empty())",
    },
    Mutant {
        law: Law::Asked,
        name: "a request waits for an answer that never comes",
        file: "machine/on_request.rs",
        function: "unassigned_permitted",
        original: "self.ask(Asker::PreflightOnRequest, limits::FETCH_DEADLINE, |ticket| Effect::Fetch(ticket, reference));",
        mutated: "self.ask(Asker::PreflightOnRequest, std::time::Duration::from_secs(1 << 30), |ticket| Effect::Fetch(ticket, reference));",
    },
    Mutant {
        law: Law::LeavesNoTrace,
        name: "what was asked about and is refused is on record as bad",
        file: "machine/on_request.rs",
        function: "unassigned_loaded",
        original: "self.answer_request(result, &why)",
        mutated: "{
                        if let Some(inquiry) = self.on_request.inquiry.clone() {
                            self.reject_by_policy(&inquiry.source, &why);
                        }
                        self.answer_request(result, &why)
                    }",
    },
    Mutant {
        law: Law::Converges,
        name: "another assignment is not watched",
        file: "machine/sync.rs",
        function: "node_assignment",
        original: "self.seek_config_map(after);",
        mutated: "",
    },
];

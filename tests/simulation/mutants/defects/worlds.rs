//! What chance found: worlds of the simulator, on a developer's machine and in CI.

use super::Back::Mutant;
use super::FoundBy::{Ci, World};
use super::{Defect, defect, edit};

pub const DEFECTS: &[Defect] = &[
    defect(
        "W1",
        World,
        "The assignment changed while the disk stalled over a checkpoint, and the supervisor spun.",
        edit("machine/sync.rs", "checkpointed", "self.resolved().as_ref() == Some(source)", "true"),
    ),
    defect(
        "W2",
        World,
        "A version was judged by what was good with an unproven one, so that what that broke counted as bad before.",
        edit(
            "machine/change/baseline.rs",
            "baseline_for_attempt",
            "unproven.and_then(|attempt| attempt.baseline.clone())",
            "None",
        ),
    ),
    defect(
        "W3",
        World,
        "A label edit of what had just been rolled back was adopted while the old kubelet still ended, and cleared it.",
        edit("machine/change/candidate.rs", "is_current", "runs && self.bad_version(version).is_none()", "runs"),
    ),
    defect(
        "W4",
        World,
        "A confirmed version was proven right after a boot, before it was healthy.",
        edit("machine/verdict.rs", "verdict", "is_confirmed && run.healthy_since.is_some()", "is_confirmed"),
    ),
    defect(
        "W5",
        World,
        "No confirmation was asked for of content that was adopted while it ran.",
        edit(
            "machine/change/candidate.rs",
            "adopt",
            "Attempt { accepts_lost_pods, confirm_within, tries: 1, signed, ..Attempt::new(version) }",
            "Attempt { accepts_lost_pods, tries: 1, signed, ..Attempt::new(version) }",
        ),
    ),
    defect(
        "W6",
        World,
        "What could be read, but too late, was left for up to ten minutes.",
        edit("machine/versions.rs", "note_readable", "unusable.next.set(now);", ""),
    ),
    defect(
        "W7",
        World,
        "Nothing was observed of a kubelet after records that were read late.",
        edit("machine/boot.rs", "records_read", "self.new_decision();", ""),
    ),
    defect(
        "W8",
        World,
        "A clean stop under a pin gave back tries that were not spent.",
        edit(
            "machine/process.rs",
            "shutdown",
            "self.give_try_back();",
            "self.give_try_back();
        if self.records().pin.is_some()
            && let Some(attempt) = self.writer.attempt_mut()
        {
            attempt.tries = attempt.tries.saturating_sub(1);
            self.writer.write_soon();
        }",
        ),
    ),
    defect(
        "W9",
        World,
        "What was on trial and could not be read was switched to as soon as it could be, in contact or not.",
        edit("machine/launch.rs", "cannot_use", "self.end_trial_without_verdict();", ""),
    ),
    defect(
        "W10",
        World,
        "A failure was held against the binary on the disk, and not against the one that ran.",
        edit("machine/versions.rs", "bad", "self.process.started_kubelet()", "self.process.kubelet_id()"),
    ),
    defect(
        "W11",
        World,
        "What was being pinned could be collected.",
        edit(
            "machine/collect.rs",
            "collect",
            "versions.extend(self.writer.all().flat_map(Records::versions));",
            "versions.extend(self.records().versions());",
        ),
    ),
    defect(
        "W12",
        World,
        "The path of what had been collected could be started.",
        edit("machine/collect.rs", "collect", "self.versions.keep_known(&digests);", ""),
    ),
    defect(
        "W13",
        World,
        "The last renewal of the Lease by the kubelet before counted as the new one's.",
        edit("machine/health.rs", "forget_last_run", "self.health.lease = None;", ""),
    ),
    defect(
        "W14",
        World,
        "A container runtime that nobody could look at any more was held against the version.",
        edit("machine/verdict.rs", "failures", "*signal != Signal::Runtime || self.is_runtime_away()", "true"),
    ),
    defect(
        "W15",
        World,
        "A Node was held against the version while no question about it was answered.",
        edit("machine/verdict.rs", "failures", "heard || !matches!(signal, Signal::NodeReady | Signal::Lease)", "true"),
    ),
    defect(
        "W16",
        World,
        "What came up while it was pinned never had to give a sign, once it was unpinned.",
        edit("machine/health/queries.rs", "update_observing", "run.await_signals(now);", ""),
    ),
    defect(
        "W17",
        World,
        "What was found damaged was started all the same while the disk stalled.",
        edit("machine/versions.rs", "note_load", "self.forget_known(version)", "()"),
    ),
    defect(
        "W18",
        World,
        "A version was said to be tried again with a binary that it had failed with, and never was.",
        edit(
            "machine/change/candidate.rs",
            "reject_as",
            "matches!(self.records().phase, Phase::RetryLater(..))",
            "false",
        ),
    ),
    defect(
        "W19",
        World,
        "A reset to a local file that could not be read restarted the kubelet under pressure.",
        edit(
            "machine/change.rs",
            "reset_loaded",
            "self.accepted(Rendered { effective, ignores_eviction, ..Rendered::default() });",
            "self.record_reset();",
        ),
    ),
    defect(
        "W20",
        World,
        "Pressure held no change on a node whose own content had been adopted under another name.",
        edit("machine/change/gate.rs", "pressure_against", "self.judgement().can_fail(&attempt.version)", "true"),
    ),
    defect(
        "W21",
        World,
        "What the disk did not give while the store was verified counted as whole.",
        edit("machine/drift.rs", "verified", "found == Verification::default()", "found.damage.is_empty()"),
    ),
    defect(
        "W22",
        World,
        "After a reset on a node where nothing lives two configurations took turns for ever.",
        edit(
            "machine/reset.rs",
            "count_exit_after_reset",
            "reset.failures.saturating_sub(1).min(limits::RESET_ROUNDS)",
            "reset.failures.min(0)",
        ),
    ),
    defect(
        "W23",
        World,
        "A change that waited for the API server asked it 1,200 times an hour.",
        Mutant("a change that waits for the API server goes on asking as it did"),
    ),
    defect(
        "W24",
        World,
        "A control test in which last known good flapped or died itself never ended.",
        edit(
            "machine/trial/control_test.rs",
            "tick_control_test",
            "self.is_waited_for(needed(failure, attempt.failed, self.settings.trial_duration))",
            "false",
        ),
    ),
    defect(
        "W25",
        World,
        "A trial in which healthz flapped never ended.",
        edit("machine/verdict.rs", "failures", "breaks >= limits::TRIAL_BREAKS", "false"),
    ),
    defect(
        "W26",
        World,
        "What a changed policy says was dropped where the local files had been edited.",
        edit(
            "machine/policy.rs",
            "policy_judged",
            "self.note_policy(&rendered.admission.policy);",
            "if Some(&rendered.digest) == self.running().digest.as_ref() {
                    self.note_policy(&rendered.admission.policy);
                }",
        ),
    ),
    defect(
        "W27",
        World,
        "What a changed policy says was dropped after one error of the disk.",
        edit(
            "machine/policy.rs",
            "policy_judged",
            "return self.policy.next.grow(limits::POLICY_RETRY, &self.clock);",
            "return;",
        ),
    ),
    defect(
        "W28",
        World,
        "Nobody asked again what denied fields make of what runs when the local files changed.",
        edit("machine/local_files.rs", "tick_local_files", "self.ask_policy();", ""),
    ),
    defect(
        "W29",
        World,
        "The next worker ended a kubelet whose content had rotted in the store, and did not go on with it.",
        Mutant("the next worker starts what is wanted, whatever runs"),
    ),
    defect(
        "W30",
        World,
        "A kubelet that ended before the record could be read had no successor for half a minute.",
        edit("machine/process.rs", "exited", "self.begin_without_former();", ""),
    ),
    defect(
        "W31",
        World,
        "A control test for another sign left a kubelet that hung to itself for ever.",
        edit("machine/liveness.rs", "is_hang_judged", "Failure::Signal(by).is_like(*before)", "true"),
    ),
    defect(
        "W32",
        World,
        "Content that was written anew, its last sync failing, was started although it was in memory alone.",
        edit("adapters/store/configs.rs", "load_config", "self.suspect.contains(&dir)", "false"),
    ),
    defect(
        "W2575",
        World,
        "A start that had looked at the state files began anew because a record was on its way.",
        edit(
            "machine/launch/start.rs",
            "state_files_swapped",
            "self.launch.set_stage(Stage::Swapped(rendered));",
            "if self.writer.is_writing() {
            self.launch.forget_state_files();
            self.launch.next = None;
        } else {
            self.launch.set_stage(Stage::Swapped(rendered));
        }",
        ),
    ),
    defect(
        "W1499",
        World,
        "Followed local files that could not be read took a change up anew each minute.",
        edit(
            "machine/local_files.rs",
            "take_up_local_files",
            "found.is_some() && self.local_files.taken_up == found",
            "false",
        ),
    ),
    defect(
        "W403",
        World,
        "The condition changed with each start of a kubelet that died while a change waited.",
        edit(
            "machine/change/gate.rs",
            "forget_answers",
            "std::mem::take(inquiry)",
            "{ std::mem::take(inquiry); Inquiry::default() }",
        ),
    ),
    defect(
        "W944",
        World,
        "A runtime that was away before READY=1 was asked for once in three minutes.",
        edit(
            "machine/health/queries.rs",
            "update_observing",
            "observing && by_node && observation == Observation::Environment",
            "false",
        ),
    ),
    defect(
        "W773738358679535989",
        World,
        "Last known good that was damaged and written anew for another name was left until its next turn.",
        edit("machine/change.rs", "change_loaded", "self.versions.note_whole(&rendered.digest, self.clock.now);", ""),
    ),
    defect(
        "W33",
        World,
        "A change that could not be written kept its standby for minutes.",
        edit(
            "machine/standby.rs",
            "tick_standby",
            "self.is_change_soon(digest) && self.writer.obstacle().is_none()",
            "self.is_change_soon(digest)",
        ),
    ),
    defect(
        "W34",
        World,
        "A hung kubelet whose node nobody could look at had the store read four times a minute.",
        edit("machine/liveness.rs", "note_observation", "self.liveness.seen.is_loaded", "false"),
    ),
    defect(
        "W35",
        World,
        "A version that came while the kubelet booted had no baseline, and what cut the node off was never taken back.",
        edit("machine/change/baseline.rs", "baseline_for_attempt", "baseline.extend(proven);", ""),
    ),
    defect(
        "W36",
        World,
        "A kubelet that stayed sick was probed 14,000 times an hour.",
        edit("machine/health.rs", "probed", "now.since(run.start_timeout_from) < start_timeout", "true"),
    ),
    defect(
        "W37",
        World,
        "An observation from before an exit decided about that exit.",
        edit("machine/trial.rs", "note_exit", "self.asks.forget_process();", ""),
    ),
    defect(
        "CI1469",
        Ci,
        "A hung kubelet whose content had rotted was restarted into another configuration.",
        edit(
            "machine/liveness.rs",
            "hung_loaded",
            "self.is_running_damaged().then_some(NoRestart::Damaged).or(why)",
            "why",
        ),
    ),
    defect(
        "CI899189306187317431",
        Ci,
        "A kubelet that waited for a disk that stalled was taken for one that hangs, and ended.",
        Mutant("a kubelet that waits for a disk hangs"),
    ),
    defect(
        "CI967417698950578515",
        Ci,
        "A change that only the full disk still held was said to wait for streams, until a time that had passed.",
        edit(
            "machine/change/gate.rs",
            "waiting",
            "inquiry.until.is_some_and(|until| self.clock.now >= until) && !self.writer.is_idle()",
            "false",
        ),
    ),
];

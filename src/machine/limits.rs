//! The numbers, each with the reason it was chosen. No decisions here.

use std::time::Duration;

use super::pause::Growth;

/// Native's trial (controller.go:44 in v1.20.2); `--trial-duration` changes it.
pub const TRIAL_DURATION: Duration = Duration::from_secs(600);

/// A kubelet that is not ready by then counts as failed. kubeadm waits 4 minutes for a first
/// start, which includes image pulls of the control plane; a restart of v1.20.2 takes 6 s and of
/// v1.36 0.3 s, so two minutes leave room for a node under heavy load. `--start-timeout`.
pub const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Healthz must fail this long without a break before the trial fails: a busy node may miss a
/// probe or two, and rolling back costs a restart.
pub const HEALTHZ_PATIENCE: Duration = Duration::from_secs(30);

/// A version whose health was broken so often by short failures of healthz or pings has failed: each begins the trial anew, and a
/// node that misses a probe now and then passes one of thirty.
pub const TRIAL_BREAKS: u32 = 30;

/// What a kubelet is told as WATCHDOG_USEC; it pings twice as often. The API's own example units
/// use 30 s, and the kubelet ignores less than 1 s (watchdog_linux.go, v1.36).
pub const WATCHDOG_INTERVAL: Duration = Duration::from_secs(30);

/// Pings may be missing this long: two intervals, as a busy node may be late with one.
pub(crate) const WATCHDOG_PATIENCE: Duration = Duration::from_secs(60);

/// Pause between healthz probes while a kubelet that is watched is not ready yet.
pub(crate) const PROBE_STARTING: Duration = Duration::from_millis(250);

/// Pause between healthz probes once it is: on trial, in a control test, before a retry, and for a
/// baseline. At all other times it is observed as seldom as [`HUNG_INTERVAL`] says.
pub const PROBE_TRIAL: Duration = Duration::from_secs(5);

/// A probe without an answer by then has failed.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A kubelet that nobody judges is hung when it was dead for so long; `--hung-after`. The kubelet itself calls its sync loop
/// stuck after 5 minutes (kubelet.go, v1.36), and the control plane evicts the pods of a lost node after 5 minutes and 40 s.
pub const HUNG_AFTER: Duration = Duration::from_secs(300);

/// It is observed so often, ...
pub const HUNG_INTERVAL: Duration = Duration::from_secs(15);
/// ... and no oftener than that, however short `--hung-after` is made; so often until it has given its first sign of life, within
/// the start's time-out.
pub(crate) const HUNG_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// Each restart of a hung kubelet doubles the time that the next one takes, up to this; ...
pub const HUNG_BACKOFF_MAX: Duration = Duration::from_secs(3600);
/// ... so much life undoes it.
pub const HUNG_BACKOFF_RESET: Duration = Duration::from_secs(3600);

/// With less memory a machine is ill: the kubelet's own hard eviction threshold (defaults_linux.go, v1.20 to v1.36). One that
/// waits for memory hangs, and starting another takes more.
pub(crate) const HUNG_MIN_MEMORY: u64 = 100 << 20;
/// With fewer process ids left as well: a kubelet that starts takes some tens of threads.
pub(crate) const HUNG_MIN_PIDS: u64 = 100;

/// What was seen of a kubelet on trial is written down so often, if it is something else: what a worker that dies has not
/// written the next one has to see once more.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);
/// A worker after another one may be as short-lived: it writes after this time, and each time that doubles.
pub(crate) const PROGRESS_FIRST: Duration = Duration::from_secs(5);

/// Exits in a trial that fail it: the first may be an accident, the second is a pattern.
pub const TRIAL_EXITS: u32 = 2;

/// After a reset the exits after which the local files are tried again double so often at the most: at one exit in ten seconds
/// that is every one and a half hours.
pub(crate) const RESET_ROUNDS: u32 = 8;

/// Supervisor starts that may pass without proof before an assigned configuration is given up:
/// a node that reboots in a loop must come up on last known good.
pub const TRIAL_BOOTS: u32 = 3;

/// A node that is cut off since a change is put back after this long; `--isolation-timeout`. The
/// control plane calls a node lost after 40 to 50 s (node-monitor-grace-period) and evicts its pods
/// after another 5 minutes: there is time for one patient query, and for the way back.
pub const ISOLATION: Duration = Duration::from_secs(90);

/// A kubelet that was in contact with the API server for this long since it was ready is not what
/// cut the node off later. Static pods that a change removes get 30 s to end.
pub const ATTRIBUTION: Duration = Duration::from_secs(45);

/// Pause between observations of the node in a trial: as often as it renews its Lease.
pub const QUERY_INTERVAL: Duration = Duration::from_secs(10);

/// Until the first renewal is seen the Lease is asked for this often, ...
pub(crate) const QUERY_EAGER: Duration = Duration::from_secs(1);
/// ... but not for ever: kubelets renew it every 10 s.
pub(crate) const QUERY_EAGER_FOR: Duration = Duration::from_secs(30);

/// The pods are asked for so long after READY=1 (the kubelet admits them within seconds) ...
pub(crate) const POD_QUERY_DELAY: Duration = Duration::from_secs(15);
/// ... and then at this pace: each query is a list at the API server.
pub(crate) const POD_QUERY_INTERVAL: Duration = Duration::from_secs(60);

/// A failure is judged without an observation of the node if there is none by then. The observation
/// itself gives up after 2.5 s.
pub const QUERY_DEADLINE: Duration = Duration::from_secs(3);

/// When the node is well again the kubelet needs some time to notice, and the Node's
/// condition to tell: v1.20.2 took 10 to 20 s after its runtime was back.
pub const SUSPENSION_GRACE: Duration = Duration::from_secs(30);

/// How the Node does is judged while the API server answered within this time: it is asked every 10 s, one answer may be
/// lost, and the next may take 5 s.
pub const API_SERVER_HEARD: Duration = Duration::from_secs(25);

/// Before a change that is held asks again for what holds it: it lists the pods, on each node.
pub(crate) const HELD: Growth = Growth { first: QUERY_INTERVAL, most: Duration::from_secs(60) };

/// An observation of the node counts for so long.
pub(crate) const QUERY_VALID: Duration = Duration::from_secs(30);

/// `lastHeartbeatTime` counts in seconds (metav1.Time): two kubelets within one write the same.
pub(crate) const HEARTBEAT_RESOLUTION: Duration = Duration::from_secs(1);

/// A change waits this long for the baseline; who has not answered by then shows nothing to be good. Each query ends within
/// 5 s: a slow API server must not hide which pods a change would cost.
pub const BASELINE: Duration = Duration::from_secs(6);

/// A Lease renewed within this time is alive: kubelets renew every 10 s.
pub(crate) const LEASE_FRESH: Duration = Duration::from_secs(60);

/// Last known good, healthy for this long after a rollback, settles that the fault was the version's.
pub const CONTROL_TEST: Duration = Duration::from_secs(30);

/// A version that the control test cleared is tried again after last known good was healthy for this long;
/// each time it doubles: each such try may cost the node its contact for 90 s, and two restarts.
pub const RETRY_LATER: Growth = seconds(30, 8 * 3600);
/// Where last known good does not get well, and nothing is known to be wrong with the node, it is tried again so much later: what
/// runs may be what is broken.
pub(crate) const NOT_RECOVERING: Duration = Duration::from_secs(600);
/// A container runtime that has been away for so long is no passing trouble: an upgrade of one takes a minute.
pub const RUNTIME_GONE: Duration = Duration::from_secs(600);

/// How often what is left of a wait for a confirmation is written down, and what each reboot takes off it: nobody knows
/// how much of that time has passed.
pub(crate) const CONFIRM_RECORD_INTERVAL: Duration = Duration::from_secs(60);

/// Versions kept for `rollback --to`, beside assigned and last known good.
pub const PROVEN_KEPT: usize = 3;

/// Contents of which it is known in this life where they lie: what runs, what is to run, and what is gone back to, twice over.
pub(crate) const KNOWN_KEPT: usize = 6;

/// Edits in place, and versions of the default source, begin within this time, each node at its own
/// (`--spread`): a restart puts pods through admission again and breaks streams, which a whole
/// cluster should not do in one second.
pub const SPREAD: Duration = Duration::from_secs(300);

/// A change waits so long for streams to end (`--courtesy`): most of them last seconds, and nobody wants to wait minutes for a
/// change.
pub const COURTESY: Duration = Duration::from_secs(30);
/// The longest such wait that may be asked for: what has to be changed is not kept back by a stream for ever.
pub const COURTESY_MAX: Duration = Duration::from_secs(3600);
/// They are asked for so often meanwhile: nothing tells of the end of another process' connection.
pub(crate) const STREAMS_INTERVAL: Duration = Duration::from_secs(1);

/// From SIGTERM to SIGKILL. The kubelet exits within 20 ms of SIGTERM and does not drain.
pub const STOP_GRACE: Duration = Duration::from_secs(15);

/// A start is answered by then: another kubelet is ended first, which takes up to twice [`STOP_GRACE`].
pub(crate) const START_DEADLINE: Duration = Duration::from_secs(60);

/// Before a restart after an exit nobody asked for: 1, 2, 4, 8, 10, 10... seconds. The longest is the RestartSec of the kubelet's
/// own unit.
pub(crate) const CRASH: Growth = seconds(1, 10);
/// A kubelet that ran this long starts the back-off afresh.
pub(crate) const BACKOFF_RESET: Duration = Duration::from_secs(60);

/// In a trial the first restart is quick: the second exit is the evidence we wait for.
pub(crate) const BACKOFF_TRIAL: Duration = Duration::from_millis(100);

/// A starting kubelet is not interrupted by a further change for this long, so that a burst of
/// changes costs two restarts at the most. v1.20.2 needs 6 s to start.
pub(crate) const START_UNDISTURBED: Duration = Duration::from_secs(10);

/// Time before a failing download is reported: right after an assignment the Node authorizer
/// has not yet seen the new edge and answers 403 for some tens of milliseconds.
pub(crate) const DOWNLOAD_PATIENCE: Duration = Duration::from_secs(2);

/// After a write in the store, by whomever, it is verified once so much time has passed: an editor or a copy is done then.
pub(crate) const VERIFY_DELAY: Duration = Duration::from_secs(2);
/// The local files are read once so much time has passed since they were written, or a kubelet was started with them.
pub(crate) const LOCAL_FILES_DELAY: Duration = Duration::from_secs(2);
/// They are read so long after the first write even if others follow.
pub(crate) const LOCAL_FILES_LATEST: Duration = Duration::from_secs(20);
/// What could not be read of them is read again after this long.
pub(crate) const LOCAL_FILES_RETRY: Duration = Duration::from_secs(60);
/// While something is found each time the store is verified, or it does not answer: each start verifies what it needs by itself.
pub(crate) const VERIFY: Growth = Growth { first: VERIFY_DELAY, most: Duration::from_secs(60) };
/// Before what runs is held against the policy once more, if the store did not give it.
pub(crate) const POLICY_RETRY: Growth = seconds(60, 600);

/// An answer of the store that is not there by then is given up, and what waited for it goes on as after a failure. Disks
/// under load take seconds; longer than this, and systemd's own watchdogs begin to bite.
pub const STORE_DEADLINE: Duration = Duration::from_secs(30);

/// The same where a kubelet waits to be started.
pub const LOAD_DEADLINE: Duration = Duration::from_secs(5);

/// A preflight is two runs of the kubelet at the most, and its self-tests two more; each ends itself after 30 s. Then there
/// is no verdict.
pub const PREFLIGHT_DEADLINE: Duration = Duration::from_secs(120);

/// The same where a start waits for it: the preflight itself takes half a second.
pub const LAUNCH_PREFLIGHT_DEADLINE: Duration = Duration::from_secs(45);

/// Before a version that could not be read is tried once more: at first longer than one load may take, so that with a disk that
/// stalls the last rung is reached; at last it is no passing error.
pub(crate) const RUNG_RETRY: Growth = seconds(10, 600);

/// Between two retries by annotation, each of which may cost two restarts. It begins anew after its longest pause.
pub(crate) const ANNOTATION_RETRY: Growth = seconds(60, 3600);

/// Before a store operation of ours is tried again.
pub const RETRY: Growth = seconds(1, 30);

/// Before the record is read again that could not be.
pub(crate) const READ_RETRY: Growth = seconds(2, 600);

/// A status that lives no longer than this on the way from one state to the next is not published: a change passes through
/// several within milliseconds, and each would cost a write at the API server.
pub const STATUS_DELAY: Duration = Duration::from_secs(1);

/// Contents remembered that a kubelet binary found valid, beside those in use.
pub(crate) const ACCEPTED_KEPT: usize = 8;

/// Versions remembered that cannot be used for now, each until it is tried again. Some ten can be named at a time.
pub(crate) const UNUSABLE_KEPT: usize = 32;

/// Refusals of namespaces remembered: each is told once, though somebody assigns two in turn.
pub(crate) const REFUSALS_KEPT: usize = 8;

/// Bad versions remembered; the oldest are forgotten first.
pub const BAD_VERSIONS: usize = 32;

/// The kubelet's last lines kept with a bad version: with 512 characters each and 32 versions the
/// log lines of the state file stay within 128 KiB. The history keeps more.
pub(crate) const LOG_LINES_KEPT: usize = 8;

/// Between one preflight on request and the next: whoever annotates a Node costs it some seconds of a processor a minute, and
/// not all of them.
pub const PREFLIGHT_REQUEST_PAUSE: Duration = Duration::from_secs(10);

/// Times that what it takes may fail to come, each after a pause that doubles; then that is the answer.
pub const PREFLIGHT_REQUEST_TRIES: u32 = 5;

/// A ConfigMap that is asked for once is there by then: each request is given up after 5 s.
pub const FETCH_DEADLINE: Duration = Duration::from_secs(10);

/// Pauses from so many seconds to so many.
const fn seconds(first: u64, most: u64) -> Growth {
    Growth { first: Duration::from_secs(first), most: Duration::from_secs(most) }
}

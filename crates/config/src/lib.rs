//! What the daemon on a node and the administrator's plugin both know of kubelet configurations. Pure: no IO, clock,
//! environment, tokio or kube; everything is a function of its arguments.
//!
//! From an assignment to what a kubelet is given:
//!
//! - [`assignment`]: which ConfigMap a node is to have, read from labels or `--default-source`
//! - [`source`]: a reference, the version it resolves to, and the payload; [`local_files`]: the node's own files in its place
//! - [`yaml`]: texts as the kubelet reads them; [`merge`]: RFC 7396
//! - [`flags`]: the kubelet's command line, and which fields it overrides
//! - [`schema`]: the fields, and which kubelets know them
//! - [`rendering`]: payload, local file and flags put together; [`digest`]: what identifies the outcome
//! - [`effective`]: what the kubelet goes by then, field by field, and where each value comes from
//!
//! What a change does to a live node:
//!
//! - [`hazard`]: the table of fields, the difference of two configurations, acknowledgements, and the pods it would cost
//! - [`policy`]: what a node's own policy admits, and signatures
//! - [`pods`]: the pods of a node as the kubelet's admission counts them
//! - [`readmission`]: which of them a kubelet that is restarted would refuse
//!
//! What is told:
//!
//! - [`status`]: the Node's status, condition and annotations, with native's texts
//! - [`reported`]: the same as a Node object has it, read without trust; [`bounds`]: texts of others, made harmless
//! - [`preflight`]: what a node is asked to judge without taking it up, and its answer
//! - [`duration`]: Go's durations, read and written; [`named!`]: enums whose variants have names

pub mod assignment;
pub mod bounds;
pub mod digest;
pub mod duration;
pub mod effective;
pub mod flags;
pub mod gates;
pub mod hazard;
pub mod local_files;
pub mod merge;
mod named;
pub mod own_files;
pub mod pods;
pub mod policy;
pub mod preflight;
pub mod readmission;
pub mod rendering;
pub mod reported;
pub mod schema;
pub mod source;
pub mod status;
mod strconv;
pub mod types;
pub mod yaml;

//! What the daemon and the controller of pools show to scrapers and probes: [`text`] is metrics in both formats,
//! [`http`] the server of `/metrics`, `/healthz` and `/readyz`.

pub mod http;
pub mod text;

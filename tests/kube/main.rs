//! The adapter to the API server, against the tests' own API server.
#![cfg(test)]

mod credentials;
mod port;

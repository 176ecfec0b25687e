//! A simulated node: disk, clock, API server and kubelet around the real executor and store.
//!
//! Nothing here sleeps, spawns or reads the clock; a seed decides everything, so that a failing
//! one replays.

pub mod account;
pub mod api;
pub mod asked;
pub mod behaviour;
pub mod chaos;
pub mod disk;
pub mod harness;
pub mod inputs;
pub mod kubelet;
pub mod laws;
pub mod moments;
pub mod needs;
pub mod policy;
pub mod ports;
mod promised;
pub mod records;
pub mod silence;
pub mod standby;
pub mod still;
pub mod store;
pub mod workers;
pub mod world;

/// SplitMix64: small, seedable, and good enough to choose faults.
#[derive(Clone, Debug, Default)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

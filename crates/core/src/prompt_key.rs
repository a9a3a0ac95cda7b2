//! Secret of the hashes of prompts: the same one for all groups, as the group of a request may depend on its body.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::OnceLock;

/// Secret numbers of which the key of the hashes is made.
pub type PromptSecret = [u64; 3];

static SECRET: OnceLock<PromptSecret> = OnceLock::new();

/// Secret of this process, which is random unless another one was set before its first use.
pub fn prompt_secret() -> PromptSecret {
    *SECRET.get_or_init(|| {
        // The keys of the standard library's hash maps come from the kernel.
        let random = RandomState::new();
        [0, 1, 2].map(|number| random.hash_one(number))
    })
}

/// Returns a number that balancers with the same secret and the same way to hash blocks have in common. The number tells
/// little of the secret, which is six times as long.
pub fn prompt_mark() -> u32 {
    let words = prompt_secret().into_iter();
    let bytes: Vec<u8> = words
        .chain([u64::from(evenkeel_inference::VERSION)])
        .flat_map(u64::to_be_bytes)
        .collect();
    crate::key::hash(&bytes) as u32
}

/// Sets the secret, if the process has none yet. Returns true if this is the secret of the process.
pub fn set_prompt_secret(secret: PromptSecret) -> bool {
    *SECRET.get_or_init(|| secret) == secret
}

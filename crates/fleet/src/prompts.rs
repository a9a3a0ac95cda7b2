//! Secret of the hashes of prompts, which all balancers of a fleet have in common, so that they send a new prompt to the
//! same engine.

use evenkeel_config::Config;
use evenkeel_core::prompt_key::set_prompt_secret;
use evenkeel_net::key_file;
use evenkeel_wire::reporting::keys::Keys;

/// Purpose for which the secret is derived from the fleet's first key.
const PURPOSE: &str = "evenkeel: hashes of prompts";

/// Derives the secret of this process from the keys of the fleet, if there is one. To be called before the first
/// request: a process keeps its secret. A key file that cannot be read changes nothing here; the configuration is
/// refused later.
pub fn share_prompt_secret(config: &Config) {
    let fleet = config.fleet.as_ref();
    let keys = fleet.and_then(|fleet| key_file::load_parsed(&fleet.key_file, Keys::parse).ok());
    if let Some(keys) = keys {
        set_prompt_secret(keys.derive_secret(PURPOSE));
    }
}

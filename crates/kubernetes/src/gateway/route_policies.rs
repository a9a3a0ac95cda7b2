//! EvenkeelPolicies: keys of routes of requests, by route and gateway.

use std::sync::Arc;

use super::group_policies::Layer;
use super::policy_keys::LIMITS;

/// Targets of the requests of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteTargets {
    /// The balancer answers the requests.
    Nobody,
    /// Members that are no engines.
    Members,
    /// Engines, perhaps among other members.
    Engines,
}

/// True if a policy of a route or of its gateways sets a key of routes.
pub(crate) fn sets_route_key(inherited: &[Arc<Layer>], key: &str) -> bool {
    let mut layers = inherited.iter();
    layers.any(|layer| layer.route.iter().any(|line| line.key == key))
}

/// Returns the lines of a route that policies set, each as the most specific policy sets the key. `inherited` has the
/// policies of the route and of its gateways, the most specific first, and `is_set` tells keys that the route sets itself.
/// A route whose requests go to no member has limits of requests only, and one without engines has no limits of tokens of its
/// gateways.
pub(crate) fn list_route_lines(
    inherited: &[Arc<Layer>],
    targets: RouteTargets,
    is_set: impl Fn(&str) -> bool,
) -> Vec<String> {
    let (mut seen, mut lines) = (Vec::new(), Vec::new());
    let all = inherited.iter();
    let all = all.flat_map(|layer| layer.route.iter().map(move |line| (layer, line)));
    for (layer, line) in all {
        let key = line.key.as_str();
        let fits = targets != RouteTargets::Nobody || key == LIMITS;
        if !fits || is_set(key) || seen.contains(&key) {
            continue;
        }
        seen.push(key);
        let without = layer.limits_without_engines.as_ref();
        let without = without.filter(|_| key == LIMITS && targets != RouteTargets::Engines);
        let line = without.unwrap_or(line);
        lines.extend(Some(line.write()).filter(|_| line.value != "[]"));
    }
    lines
}

//! EvenkeelPolicies: keys of routes of requests, by route and gateway.

use std::sync::Arc;

use super::group_policies::Layer;

/// True if a policy of a route or of its gateways sets a key of routes.
pub(crate) fn sets_route_key(inherited: &[Arc<Layer>], key: &str) -> bool {
    let mut layers = inherited.iter();
    layers.any(|layer| layer.route.iter().any(|line| line.key == key))
}

/// Returns the lines of a route that policies set, each as the most specific policy sets the key. `inherited` has the
/// policies of the route and of its gateways, the most specific first, and `is_set` tells keys that the route sets itself.
/// A route whose requests go to no member has limits of requests only.
pub(crate) fn list_route_lines(
    inherited: &[Arc<Layer>],
    has_members: bool,
    is_set: impl Fn(&str) -> bool,
) -> Vec<String> {
    let (mut seen, mut lines) = (Vec::new(), Vec::new());
    for line in inherited.iter().flat_map(|layer| &layer.route) {
        let key = line.key.as_str();
        let fits = has_members || key == "request_limits";
        if fits && !is_set(key) && !seen.contains(&key) {
            seen.push(key);
            lines.push(line.write());
        }
    }
    lines
}

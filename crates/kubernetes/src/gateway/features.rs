//! Features of the Gateway API that the status of a GatewayClass lists.

use serde_json::{Value, json};

/// Names of the features, in ascending order. The conformance suites check these features.
const FEATURES: [&str; 37] = [
    "BackendTLSPolicy",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayHTTPListenerIsolation",
    "GatewayPort8080",
    "HTTPRoute",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
    "UDPRoute",
];

/// Returns the features as the status of a GatewayClass has them.
pub(crate) fn list_features() -> Value {
    FEATURES
        .iter()
        .map(|name| json!({ "name": name }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_those_of_the_conformance_reports_in_order() {
        let requests = include_str!("../../../../e2e/conformance_go/features").lines();
        let streams = include_str!("../../../../e2e/conformance_go/streams/features").lines();
        let claimed = requests.chain(streams);
        let mut claimed: Vec<_> = claimed.filter(|line| !line.starts_with('#')).collect();
        claimed.sort_unstable();
        claimed.dedup();
        assert_eq!(claimed, FEATURES);
        assert_eq!(list_features()[0], json!({ "name": FEATURES[0] }));
    }
}

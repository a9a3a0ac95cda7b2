//! What back-ends already speak to report their load: ORCA, agent-check, Prometheus.

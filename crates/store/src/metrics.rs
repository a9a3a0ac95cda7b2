//! Metrics of the balancer's connection with the store.

use evenkeel_manager::exposition::{Exposition, Type};

use crate::status::StoreStatus;

/// Writes the families, with the numbers of revisions that were applied and refused.
pub(crate) fn write_families(
    out: &mut Exposition,
    status: &StoreStatus,
    applied: u64,
    refused: u64,
) {
    let mut gauge = |name, help, value: f64| {
        out.begin_family(name, Type::Gauge, help);
        out.add_sample(&[], value);
    };
    gauge(
        "evenkeel_store_up",
        "1 while the store of the configuration is followed, 0 while it does not answer.",
        f64::from(u8::from(status.trouble.is_none())),
    );
    gauge(
        "evenkeel_store_waits",
        "1 while the store has gone back in time and the balancer waits for a push or `evenkeel store confirm`.",
        f64::from(u8::from(status.waits)),
    );
    gauge(
        "evenkeel_store_revision",
        "Number of the store's revision that is in force.",
        status.running.unwrap_or_default() as f64,
    );
    gauge(
        "evenkeel_store_revision_wanted",
        "Number of the store's revision that all balancers are to have.",
        status.current.unwrap_or_default() as f64,
    );
    out.begin_family(
        "evenkeel_store_revisions_total",
        Type::Counter,
        "Revisions of the store that came: applied, or refused.",
    );
    out.add_sample(&[("result", "applied")], applied as f64);
    out.add_sample(&[("result", "refused")], refused as f64);
}

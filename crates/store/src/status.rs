//! Status of the balancer's connection with the store.

use schemars::JsonSchema;
use serde::Serialize;

/// State of the connection with the store.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct StoreStatus {
    /// Address of the store.
    pub store: String,
    /// Name of this balancer in the store.
    pub name: String,
    /// Reason for which the store cannot be followed; null if it can.
    pub trouble: Option<String>,
    /// The number of the revision in force.
    pub running: Option<u64>,
    /// The number of the revision that all balancers are to have.
    pub current: Option<u64>,
    /// The number of the revision that is rolled out.
    pub trial: Option<u64>,
    /// The balancers that try the revision; empty if all do.
    pub tried_by: Vec<String>,
    /// Reason for which this balancer refuses the revision that it is to have; null if it does not.
    pub refused: Option<String>,
    /// The number of the revision that was taken back last, if none was pushed since.
    pub taken_back: Option<u64>,
    /// Reason for which that revision was taken back.
    pub taken_back_because: Option<String>,
    /// True while this balancer waits for a person, because the store has gone back in time.
    pub waits: bool,
}

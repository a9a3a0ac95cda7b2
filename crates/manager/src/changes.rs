//! Live changes by administrators, for the process that takes the place of this one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::inputs::AdminState;

/// Live changes by administrators, and other state that otherwise lasts as long as a process.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Changes {
    /// The text in force: where another one says something new, that
    /// counts.
    pub text: String,
    /// File of the text: the files that the text includes are found from there.
    #[serde(skip)]
    pub file: PathBuf,
    pub generation: u64,
    pub enabled: HashMap<String, bool>,
    pub maintenance: HashMap<String, bool>,
    pub group_maintenance: HashMap<String, bool>,
    pub strategies: HashMap<String, (String, Vec<(String, f64)>)>,
    pub admin: Vec<(String, String, AdminState)>,
    pub weights: Vec<(String, String, f64)>,
    pub backups: Vec<(String, String, bool)>,
    pub alerts: HashMap<String, bool>,
    /// Names need not be looked up before clients are served.
    pub addresses: HashMap<String, Vec<IpAddr>>,
}

//! What runs beside a server: measures, reports, sheds.

pub mod figures;
pub mod host;
pub mod learn;

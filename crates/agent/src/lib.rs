//! What runs beside a server: measures, reports, sheds.

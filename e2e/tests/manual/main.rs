//! Every command, link and configuration of the manual.

mod manual;
mod site;

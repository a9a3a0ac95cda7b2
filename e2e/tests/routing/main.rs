//! Members that get requests: routes, users, cookies, shares, zones, lists, outages.

mod auth;
mod backups;
mod choosers;
mod cors;
mod defaults;
mod engine_outages;
mod forward_auth;
mod full_engines;
mod inference;
mod lists;
mod model_aliases;
mod model_fallbacks;
mod models;
mod outages;
mod pages;
mod routing;
mod shares;
mod sticky;
mod token_limits;
mod unanswered_tokens;
mod zones;

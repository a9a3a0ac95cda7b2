//! Arguments of `evenkeel store`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `evenkeel store`.
#[derive(Debug, Args)]
pub(crate) struct Store {
    /// File of a balancer, whose `[store]` says where the store is
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/evenkeel/evenkeel.toml"
    )]
    pub config: PathBuf,
    #[command(subcommand)]
    pub command: StoreCommand,
}

/// Commands for the store.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Check a configuration, and write it to the store
    Push {
        /// The configuration that balancers share
        file: PathBuf,
        /// Number of the revision that the push changes, as `pull` and `history` show it; or `latest`
        #[arg(long, value_name = "NUMBER", value_parser = base)]
        of: Option<StoreBase>,
        /// Reason for the push
        #[arg(long, short = 'm', default_value = "")]
        message: String,
        /// Push to all balancers at once, also with `rollout`; a roll-out in progress is ended
        #[arg(long)]
        at_once: bool,
        /// Push even a configuration without rules, with which all balancers close all their listeners
        #[arg(long)]
        force: bool,
    },
    /// Print the configuration that balancers share, or an earlier revision of it
    Pull {
        /// Number of the revision; by default the one that all balancers have
        revision: Option<u64>,
        /// Write the configuration to this file
        #[arg(long, short = 'o', value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Compare the configuration that balancers have, or a revision, with a file or another revision
    Diff {
        /// Number of a revision, or a file
        other: String,
        /// Number of the revision to compare; by default the one that all balancers have
        #[arg(long, value_name = "NUMBER")]
        from: Option<u64>,
    },
    /// List the last revisions, and what balancers run
    History {
        /// Maximum number of revisions
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(i64).range(1..=1000))]
        limit: i64,
    },
    /// End a roll-out, or go back to the previous configuration, at all balancers at once
    Rollback {
        /// Number of the revision to go back to
        revision: Option<u64>,
        /// Reason for going back
        #[arg(long, short = 'm', default_value = "")]
        message: String,
    },
    /// Confirm that the store's configuration is right, though the store went back in time (as after a restore)
    Confirm,
}

/// Revision that a push is a change of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoreBase {
    /// Whatever is there.
    Latest,
    /// The revision of that number.
    Number(u64),
}

fn base(text: &str) -> Result<StoreBase, String> {
    match text {
        "latest" => Ok(StoreBase::Latest),
        _ => text
            .parse()
            .map(StoreBase::Number)
            .map_err(|_| "expected the number of a revision, or `latest`".into()),
    }
}

//! Prompts that engines remember, for the process that takes the place of this one: the indexes in a file in memory,
//! and the rest as a part of the hand-over.
//!
//! Indexes may have many megabytes. They are copied without any lock while requests go on, and before the subsystems
//! let go of what only one process can have.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Seek as _, SeekFrom};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_core::engines::EnginePool;
use evenkeel_core::member::MemberId;
use evenkeel_core::prompt_key::PromptSecret;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::entry::GroupEntry;

/// Time in which the indexes of all groups are copied, or read. The rest is left out.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Prompts of all groups, beside their indexes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct CopiedPrompts {
    /// Secret of the hashes.
    pub secret: PromptSecret,
    pub groups: BTreeMap<String, CopiedGroup>,
}

/// Prompts of a group, beside its index.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CopiedGroup {
    /// Place of the group's index in the file.
    offset: u64,
    /// Words that are learnt of all members together.
    shared: Vec<u64>,
    members: Vec<CopiedMember>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CopiedMember {
    host: String,
    port: u16,
    address: String,
    /// Number in the index.
    number: u16,
    words: Vec<u64>,
}

/// Prompts of another process, of which the first configuration makes use.
#[derive(Debug)]
pub(crate) struct OtherPrompts {
    pub copied: CopiedPrompts,
    pub file: File,
}

/// Engines of a group, with the identity of each member.
pub(crate) struct NamedEngines {
    pub group: String,
    pool: Arc<EnginePool>,
    members: HashMap<MemberId, (String, u16, String)>,
}

impl NamedEngines {
    /// Finds the engines of a group, if there are any.
    pub(crate) fn find(entry: &GroupEntry) -> Option<Self> {
        let pool = Arc::clone(entry.group.engines()?);
        let members = entry.endpoints.iter().map(|endpoint| {
            let address = endpoint.member.address.to_string();
            let identity = (endpoint.host.clone(), endpoint.port, address);
            (endpoint.member.id, identity)
        });
        Some(NamedEngines {
            group: entry.config.name.clone(),
            pool,
            members: members.collect(),
        })
    }

    /// Copies the prompts of the group, the index to the end of a file.
    pub(crate) fn copy(&self, file: &mut &File, until: Instant) -> io::Result<CopiedGroup> {
        let offset = file.stream_position()?;
        let numbers = self.pool.list_numbers();
        let copied = self.pool.write_index(file, || Instant::now() < until)?;
        if !copied.is_complete {
            warn!(
                group = self.group,
                "upgrade: the index of prompts was not copied in time: the new process starts with a part of it"
            );
        }
        // A number that was given to another member meanwhile says nothing.
        let now = self.pool.list_numbers();
        let same = numbers.iter().zip(&now).zip(0u16..);
        let same = same.filter(|((before, now), _)| before == now);
        let members = same.filter_map(|((id, _), number)| {
            let (host, port, address) = self.members.get(id.as_ref()?)?.clone();
            let words = self.pool.group().export_member(usize::from(number))?;
            Some(CopiedMember {
                host,
                port,
                address,
                number,
                words: words.to_vec(),
            })
        });
        Ok(CopiedGroup {
            offset,
            shared: self.pool.group().export_shared(),
            members: members.collect(),
        })
    }
}

impl OtherPrompts {
    /// Has groups go on with the prompts of the groups of the same names.
    pub(crate) fn restore_groups(mut self, groups: &[GroupEntry]) {
        let until = Instant::now() + LIMIT;
        for entry in groups {
            let name = &entry.config.name;
            let (Some(engines), Some(copied)) =
                (entry.group.engines(), self.copied.groups.remove(name))
            else {
                continue;
            };
            let numbers = copied.restore_members(entry, engines);
            let read = self
                .file
                .seek(SeekFrom::Start(copied.offset))
                .and_then(|_| {
                    let mut reader = BufReader::with_capacity(1 << 17, &self.file);
                    engines.read_index(&mut reader, &numbers, || Instant::now() < until)
                });
            match read {
                Ok(read) if read.is_complete => {
                    info!(
                        group = name,
                        blocks = read.entries,
                        "upgrade: the group has the prompts that the old process has learnt"
                    );
                }
                Ok(read) => {
                    warn!(
                        group = name,
                        blocks = read.entries,
                        "upgrade: the index of prompts was not read within {LIMIT:?}: the group has a part of it"
                    );
                }
                Err(error) => {
                    warn!(group = name, %error, "upgrade: the index of prompts cannot be read: the group starts without the rest");
                }
            }
        }
    }
}

impl CopiedGroup {
    /// Has the group's members go on with what was learnt of them. Returns the new number of each old one.
    fn restore_members(&self, entry: &GroupEntry, engines: &EnginePool) -> Vec<Option<u16>> {
        engines.group().import_shared(&self.shared);
        let numbers = engines.list_numbers();
        let numbers = numbers.iter().zip(0u16..);
        let numbers: HashMap<_, _> = numbers
            .filter_map(|(id, number)| Some(((*id)?, number)))
            .collect();
        let by_key = entry.endpoints.iter().filter_map(|endpoint| {
            let number = *numbers.get(&endpoint.member.id)?;
            let address = endpoint.member.address.to_string();
            Some(((&*endpoint.host, endpoint.port, address), number))
        });
        let by_key: HashMap<(&str, u16, String), u16> = by_key.collect();
        let mut translated = Vec::new();
        for member in &self.members {
            let key = (&*member.host, member.port, member.address.clone());
            let Some(&new) = by_key.get(&key) else {
                continue;
            };
            engines
                .group()
                .import_member(usize::from(new), &member.words);
            let old = usize::from(member.number);
            if translated.len() <= old {
                translated.resize(old + 1, None);
            }
            if let Some(place) = translated.get_mut(old) {
                *place = Some(new);
            }
        }
        translated
    }
}

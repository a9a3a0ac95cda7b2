//! Follows lists of members, and changes members with them.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_net::Tasks;
use tracing::{info, warn};

use super::found::FoundMember;
use super::service::Service;
use super::{
    Files, Lists, Read, file_patterns, found_names, has_found_list, read, same_files, service_names,
};
use crate::config::Config;
use crate::config::watch::Folders;
use crate::dns::{FAILED, RETRY_UNKNOWN};
use crate::manager::Manager;

/// Interval at which files are looked at without an event: for file systems that send none, and for folders
/// that are not there yet.
const POLL: Duration = Duration::from_secs(5);

/// Time for which folders must be quiet before they are looked at.
const QUIET: Duration = Duration::from_millis(100);

impl Manager {
    /// Reads the lists of `config`, given what is known of them.
    pub(crate) async fn read_lists(&self, config: &Config, known: Lists) -> Lists {
        let Lists {
            services: mut of_services,
            files,
            mut found,
        } = known;
        let wanted = service_names(config);
        of_services.retain(|name, _| wanted.contains(name));
        let new: HashSet<String> = { wanted.into_iter() }
            .filter(|name| !of_services.contains_key(name))
            .collect();
        let files = self.read_files(config, files).await;
        let lists = found_names(config);
        let found_now = Arc::make_mut(&mut found);
        found_now.retain(|name, _| lists.contains(name));
        let unknown = { lists.into_iter() }
            .filter(|name| !found_now.contains_key(name))
            .collect();
        let (records, members) = tokio::join!(
            self.resolver.all_services(&config.dns, new),
            self.subsystems().find_members(config, unknown)
        );
        for (name, members) in members {
            self.note_list(&name, members.as_ref().err().cloned());
            let members = members.ok().map(|members| (name, Arc::new(members)));
            Arc::make_mut(&mut found).extend(members);
        }
        for (name, records) in records {
            match records {
                Ok(records) => {
                    of_services.insert(name, records);
                }
                Err(error) => self.note_list(&name, Some(error)),
            }
        }
        Lists {
            services: of_services,
            files,
            found,
        }
    }

    /// Makes `members` the members of the list `name`. A list that no group uses any more is left out.
    pub fn set_found_members(&self, name: &str, members: Vec<FoundMember>) {
        let mut owned = self.lock();
        let inputs = &owned.state.inputs;
        let known = inputs.lists.found.get(name);
        if known.is_some_and(|known| **known == members) || !has_found_list(&inputs.config, name) {
            return;
        }
        let drained = members.iter().filter(|member| member.drain).count();
        info!(
            list = name,
            members = members.len(),
            drained,
            "a list of members has changed"
        );
        let mut lists = inputs.lists.clone();
        Arc::make_mut(&mut lists.found).insert(name.to_owned(), Arc::new(members));
        let inputs = inputs.with_lists(lists, self.clock().now());
        if let Err(error) = self.apply_change(&mut owned.state, inputs) {
            warn!(
                list = name,
                "the new members of the list are not used: {error}"
            );
        }
    }

    /// Returns the members that subsystems found last, by the names of their lists.
    pub fn found_members(&self) -> Arc<HashMap<String, Arc<Vec<FoundMember>>>> {
        Arc::clone(&self.lock().state.inputs.lists.found)
    }

    async fn read_files(&self, config: &Config, known: Files) -> Files {
        let patterns = file_patterns(config);
        if patterns.is_empty() {
            return Files::new();
        }
        let all = patterns.clone();
        let read = tokio::task::spawn_blocking(move || read(&patterns, &known)).await;
        // It does not panic; if it did, nothing would be known.
        let Read { files, errors } = read.unwrap_or_default();
        for pattern in all {
            self.note_list(&pattern, errors.get(&pattern).cloned());
        }
        files
    }

    /// Notes, and says in the log, that a list is good or is not.
    pub fn note_list(&self, list: &str, error: Option<String>) {
        let is_news = self.lock().troubles.note(list, error.clone());
        match error {
            Some(error) if is_news => {
                warn!(
                    list,
                    "a list of members has an error, and its members stay as they were: {error}"
                );
            }
            None if is_news => info!(list, "a list of members has no error any more"),
            _ => {}
        }
    }

    /// Reads files with members again when they change.
    pub(crate) async fn follow_files(self: &Arc<Self>) {
        let (mut changes, mut folders) = (self.subscribe_changes(), Folders::new());
        loop {
            let config = self.shared_config();
            let all = file_patterns(&config);
            folders.follow_files(all.iter().map(PathBuf::from));
            tokio::select! {
                () = folders.wait_for_change() => tokio::time::sleep(QUIET).await,
                () = tokio::time::sleep(POLL), if !all.is_empty() => {}
                changed = changes.changed() => match changed {
                    // What is new has been read with the configuration.
                    Ok(()) => continue,
                    Err(_) => return,
                },
            }
            let known = self.lock().state.inputs.lists.files.clone();
            let files = self.read_files(&config, known).await;
            let mut owned = self.lock();
            // Unless the configuration is another one by now.
            let inputs = &owned.state.inputs;
            if file_patterns(&inputs.config) != all || same_files(&inputs.lists.files, &files) {
                continue;
            }
            let lists = Lists {
                files,
                ..inputs.lists.clone()
            };
            let inputs = inputs.with_lists(lists, self.clock().now());
            match self.apply_change(&mut owned.state, inputs) {
                Ok(()) => info!("members have changed in files of `members_files`"),
                Err(error) => {
                    warn!("the changed members in files of `members_files` are not used: {error}")
                }
            }
        }
    }

    /// Looks all services up again and again.
    pub(crate) async fn follow_services(self: &Arc<Self>) {
        let (mut tasks, mut changes) = (Tasks::default(), self.subscribe_changes());
        loop {
            let wanted = service_names(&self.shared_config()).into_iter();
            let wanted: HashMap<String, ()> = wanted.map(|name| (name, ())).collect();
            tasks.reconcile(wanted, |name, ()| follow(Arc::clone(self), name));
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The service has these records now, and their hosts these addresses.
    async fn found(&self, name: &str, records: Vec<Service>) {
        let (dns, known) = {
            let owned = self.lock();
            let inputs = &owned.state.inputs;
            if inputs.lists.services.get(name) == Some(&records) {
                return;
            }
            (inputs.config.dns.clone(), inputs.addresses.clone())
        };
        let hosts = records.iter().map(|record| record.host.clone());
        let new = hosts.filter(|host| !known.contains_key(host)).collect();
        let addresses = self.resolver.lookup_all(&dns, new).await;
        let mut owned = self.lock();
        let inputs = &owned.state.inputs;
        if !service_names(&inputs.config).contains(name) {
            return;
        }
        let mut lists = inputs.lists.clone();
        info!(service = name, ?records, "a service has new members");
        lists.services.insert(name.to_owned(), records);
        let mut inputs = inputs.with_lists(lists, self.clock().now());
        inputs.addresses.extend(addresses);
        if let Err(error) = self.apply_change(&mut owned.state, inputs) {
            warn!(
                service = name,
                "the new members of the service are not used: {error}"
            );
        }
    }
}

async fn follow(manager: Arc<Manager>, name: String) {
    let known = manager
        .lock()
        .state
        .inputs
        .lists
        .services
        .contains_key(&name);
    // What has been looked up with the configuration need not be at once again, but for its TTL.
    let mut wait = if known { Duration::ZERO } else { RETRY_UNKNOWN };
    loop {
        tokio::time::sleep(wait).await;
        let dns = manager.lock().state.inputs.config.dns.clone();
        wait = match manager.resolver.services(&dns, &name).await {
            Ok((records, ttl)) => {
                manager.note_list(&name, None);
                manager.found(&name, records).await;
                dns.bounded(ttl).mul_f32(1.0 + 0.1 * fastrand::f32())
            }
            Err(error) => {
                manager.note_list(&name, Some(error.to_string()));
                FAILED
            }
        };
    }
}

//! Targets of connections at a port, by the names that clients of TLS ask for.

use std::collections::HashSet;
use std::sync::Arc;

use super::super::attach::{Attachment, is_isolated};
use super::super::backends::NOBODY;
use super::super::listeners::{Class, ListenerState};
use super::super::text::{Owner, covers_host};
use super::{StreamTarget, StreamTargets, Work};

fn host_of(listener: &ListenerState<'_>) -> Option<String> {
    listener.hostname().map(str::to_ascii_lowercase)
}

fn passes(listener: &ListenerState<'_>) -> bool {
    listener.class == Some(Class::Passthrough)
}

impl Work<'_> {
    /// Adds the targets of a route at its listeners.
    pub(super) fn add_stream_targets(
        &mut self,
        attachments: &[Attachment],
        group: &str,
        owner: &Arc<Owner>,
        targets: &mut StreamTargets,
    ) {
        if group == NOBODY {
            self.groups.need_nobody();
        }
        for attachment in attachments {
            let Some(index) = self.frontend_of(attachment.listener) else {
                continue;
            };
            let (Some(frontend), Some(listener)) = (
                self.frontends.get(index),
                self.listeners.get(attachment.listener),
            ) else {
                continue;
            };
            let (own, passes) = (host_of(listener), passes(listener));
            for host in &attachment.hosts {
                if is_isolated(host.as_deref(), own.as_deref(), frontend) {
                    continue;
                }
                // The oldest route has the name.
                if self.server_names.insert((index, host.clone())) {
                    let target = StreamTarget {
                        host: host.clone(),
                        group: group.to_owned(),
                        owner: Arc::clone(owner),
                        passes,
                    };
                    targets.entry(index).or_default().push(Arc::new(target));
                }
            }
        }
    }

    /// Adds refusals at a port for TLS: clients of a listener never get to routes of a less specific listener, and where TLS
    /// passes through, the connection of a client that no route is for is reset. `all` are the listeners of the port without a
    /// conflict, and `serving` those of them that serve clients: the names of all others are refused, too.
    pub(super) fn add_refusals(
        &mut self,
        all: &[usize],
        serving: &[usize],
        targets: &mut Vec<Arc<StreamTarget>>,
    ) {
        let find = |numbers: &[usize]| -> Vec<_> {
            let found = numbers.iter().filter_map(|of| self.listeners.get(*of));
            found.collect()
        };
        let listeners = find(all);
        let hosts: Vec<_> = listeners.iter().map(|of| host_of(of)).collect();
        let named: HashSet<&Option<String>> = targets.iter().map(|target| &target.host).collect();
        let mut refused = Vec::new();
        for (listener, host) in listeners.iter().zip(&hosts) {
            let Some(name) = host else {
                continue;
            };
            let has_wider = hosts.iter().any(|other| match other {
                None => true,
                Some(other) => other != name && covers_host(other, name),
            });
            if has_wider && !named.contains(&host) {
                refused.push((host.clone(), listener.owner(), passes(listener)));
            }
        }
        let passing = match serving.is_empty() {
            // All listeners are for requests.
            true => listeners.first().copied(),
            false => find(serving).into_iter().find(|of| passes(of)),
        };
        if let Some(listener) = passing
            && targets.iter().all(|target| target.host.is_some())
        {
            refused.push((None, listener.owner(), true));
        }
        if !refused.is_empty() {
            self.groups.need_nobody();
        }
        targets.extend(refused.into_iter().map(|(host, owner, passes)| {
            Arc::new(StreamTarget {
                host,
                group: NOBODY.into(),
                owner: Arc::new(owner),
                passes,
            })
        }));
    }
}

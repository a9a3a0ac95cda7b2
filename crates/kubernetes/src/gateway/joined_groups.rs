//! Several targets of a route for connections: one group with the endpoints of all of them.

use super::backends::{Group, Groups, Members, Protocol};
use super::shares::ServiceShare;

impl Groups {
    /// Adds a group with the endpoints of several groups by their weights, in place of the groups of the rule that is
    /// read. Returns the name of the group; `None` if one group cannot have all of these members: some cannot be used,
    /// or members speak TLS in different ways.
    pub(super) fn add_shares(&mut self, weights: &[(String, u32)]) -> Option<String> {
        let (mut shares, mut common, mut target) = (Vec::new(), None, None);
        for (name, weight) in weights {
            let group = self.find(name)?;
            let (port, lines) = match &group.members {
                Members::Service(port, Protocol::Plain) => (port.to_string(), Vec::new()),
                Members::Datagrams(port, name) => {
                    (name.clone().unwrap_or_else(|| port.to_string()), Vec::new())
                }
                Members::Tls(port, Protocol::Plain, line, _) => {
                    (port.to_string(), vec![line.clone()])
                }
                _ => return None,
            };
            if *common.get_or_insert_with(|| lines.clone()) != lines {
                return None;
            }
            target.get_or_insert_with(|| group.target.clone());
            shares.push(ServiceShare {
                port: format!("{}:{port}", group.target),
                weight: *weight,
            });
        }
        self.drop_current();
        Some(self.add(Group {
            target: target?,
            members: Members::Shares(shares, common?),
            binding: None,
            // Policies of several services could contradict each other.
            tuning: None,
            actions: None,
        }))
    }
}

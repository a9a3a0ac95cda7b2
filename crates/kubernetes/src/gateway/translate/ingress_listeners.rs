//! Listeners of the hosts of Ingresses, and the certificates that clients show there.

use super::super::ingress::annotations::Treatment;
use super::super::ingress::client_certificates::refuse_demand;
use super::super::listeners::Class;
use super::super::objects::Ingress;
use super::Work;

impl Work<'_> {
    /// Returns the reason why a listener serves nobody.
    pub(super) fn find_conflict(&self, listener: usize) -> Option<&String> {
        let listener = self.listeners.get(listener)?;
        let found = listener.conflict.as_ref().or(listener.refusal.as_ref());
        found.map(|(_, message)| message)
    }

    /// Returns the reason why clients of a host do not show the certificates that an Ingress demands.
    pub(super) fn refuse_clients(
        &self,
        ingress: &Ingress,
        treatment: &Treatment,
        host: Option<&str>,
    ) -> Option<String> {
        let wanted = treatment.client_certificates.as_ref()?;
        let refusal = refuse_demand(
            wanted,
            &ingress.metadata.namespace,
            host,
            &self.ingress.hosts,
        );
        refusal.or_else(|| {
            let listener = self.ingress.host_listeners.get(host?)?;
            self.find_conflict(*listener).cloned()
        })
    }

    /// Returns the numbers of the listeners of a host of Ingresses.
    pub(super) fn list_listeners(&self, host: Option<&str>) -> impl Iterator<Item = usize> {
        let own = host.and_then(|host| self.ingress.host_listeners.get(host));
        let is_served_apart = move |number: usize| {
            let class = self.listeners.get(number).and_then(|of| of.class);
            own.is_some() && class == Some(Class::Https)
        };
        let of_all = self.ingress.listeners.iter();
        let of_all = of_all.filter(move |number| !is_served_apart(**number));
        of_all.chain(own).copied()
    }
}

/**
 * Joins CORBA servers to object groups of a {@code CosLoadBalancing} load manager.
 *
 * <p>Begin at {@link org.evenkeel.corba.LoadBalancing}. Clients need nothing of this.
 */
package org.evenkeel.corba;

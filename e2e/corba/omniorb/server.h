#ifndef SERVER_H
#define SERVER_H

#include "peer.h"

// Activates a servant, which is kept by its POA.
CORBA::Object_ptr activate(PortableServer::ServantBase *servant);

// Objects of the sort that the server has one of.
CORBA::Object_ptr new_peer(const std::string &name);
void end_peer(CORBA::Object_ptr peer);

#endif

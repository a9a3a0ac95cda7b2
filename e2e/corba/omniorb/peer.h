// What the test program's two halves have in common.
#ifndef PEER_H
#define PEER_H

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "test.hh"

// `server` and `client`; the arguments are those that the ORB has left.
int serve(CORBA::ORB_ptr orb, const std::vector<std::string> &arguments);
int call(CORBA::ORB_ptr orb, const std::vector<std::string> &arguments);

// One line on standard output, at once: the test waits for it.
inline void say(const std::string &line) { std::cout << line << std::endl; }

// An exception as the tests expect it: `error NAME MINOR COMPLETED`, `error REPOSITORY-ID`.
std::string told(const CORBA::Exception &exception);

// The words of a line.
inline std::vector<std::string> words(const std::string &line) {
  std::istringstream in(line);
  std::vector<std::string> all;
  for (std::string word; in >> word;) all.push_back(word);
  return all;
}

// A number of the script. The scripts are ours: what is no number ends the program.
inline long number(const std::string &text) { return std::stol(text); }

#endif

/*
 * evenkeel.h - what libarm has beside ARM 2.0.
 */
#ifndef EVENKEEL_H_INCLUDED
#define EVENKEEL_H_INCLUDED

#include "arm.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Whether the application's location is under a load alert now: 1 if so, and then new
 * clients should be sent back to where they came from; else 0, also for what is no
 * application. It reads one word of memory, and the clock while there is an alert; the
 * alert ends by itself if the agent that gave it does not renew it.
 */
int evenkeel_shed(arm_appl_id_t appl_id);

/*
 * Whether an agent can see what the application counts: 1 if so; 0 if there was no place
 * for its page (no such directory, no right to write there, no memory, a file of somebody
 * else), or it is no application.
 */
int evenkeel_measured(arm_appl_id_t appl_id);

#ifdef __cplusplus
}
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device between processes, as conformance programs hand it on;
 * what fails ends the process. */
#ifndef SK_TESTS_SIM_SHARE_FD_H
#define SK_TESTS_SIM_SHARE_FD_H

void send_fd(int socket, int fd);
int receive_fd(int socket);

#endif

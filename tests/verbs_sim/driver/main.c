/* main.c - driver CASE: exit status 0 when the case holds, else the place where it did not, on stderr. */
#include "driver.h"

#include <dirent.h>
#include <string.h>

static const struct { const char *name; case_function *run; } cases[] = {
#define ENTRY(name) { #name, name }
	ENTRY(states), ENTRY(values), ENTRY(flush), ENTRY(sq_accounting), ENTRY(rq_accounting),
	ENTRY(bad_lkey), ENTRY(bad_rkey), ENTRY(out_of_range), ENTRY(access_flags), ENTRY(registration),
	ENTRY(rnr_exceeded), ENTRY(rnr_forever), ENTRY(inline_data), ENTRY(receive_too_short),
	ENTRY(imm_order), ENTRY(reorder), ENTRY(source_reuse), ENTRY(reads), ENTRY(errors_leave_fields_undefined),
	ENTRY(dead_peer), ENTRY(wrong_psn), ENTRY(wrong_gid_type), ENTRY(mtu_mismatch), ENTRY(two_processes),
	ENTRY(cq_overrun), ENTRY(notification), ENTRY(port_events), ENTRY(link_flap), ENTRY(qp_fatal),
	ENTRY(device_fatal), ENTRY(leaves_all), ENTRY(misuses), ENTRY(gid_table), ENTRY(first_row),
	ENTRY(breaks), ENTRY(limits), ENTRY(drops), ENTRY(landing),
	ENTRY(nth_calls), ENTRY(wc_errors), ENTRY(no_device), ENTRY(unmapped), ENTRY(stopped_peer),
};

static int open_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	CHECK(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

int main(int argc, char **argv)
{
	for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (!strcmp(argv[1], cases[i].name)) {
			int before = open_descriptors();

			cases[i].run();
			if (cases[i].run != leaves_all)
				CHECK_EQ(open_descriptors(), before);
			return 0;
		}
		if (!strcmp(argv[1], "--list"))
			printf("%s\n", cases[i].name);
	}
	return argc == 2 && !strcmp(argv[1], "--list") ? 0 : 2;
}

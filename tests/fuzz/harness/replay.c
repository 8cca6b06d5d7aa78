/*
 * replay.c - runs a harness over files, or all files of folders: the kept inputs as tests, without libFuzzer.
 *
 * FUZZ_SECONDS=N: then damaged copies of them for N seconds, of seed FUZZ_SEED (1). See mutate.c.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"
#include "mutate.h"

#define KEPT_MAX 4096

static struct mutate_input kept[KEPT_MAX];
static size_t count;

static void run_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	long size = -1;

	if (!file || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0 ||
	    count == KEPT_MAX) {
		fprintf(stderr, "cannot read %s\n", path);
		exit(2);
	}
	uint8_t *bytes = malloc((size_t)size + !size); /* exactly: a read beyond it is seen */
	if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size) {
		fprintf(stderr, "cannot read %s\n", path);
		exit(2);
	}
	fclose(file);
	fprintf(stderr, "%s\n", path); /* the last one named is the one that crashed */
	LLVMFuzzerTestOneInput(bytes, (size_t)size);
	kept[count++] = (struct mutate_input){.bytes = bytes, .size = (size_t)size};
}

static void run(const char *path)
{
	DIR *folder = opendir(path);

	if (!folder) {
		run_file(path);
		return;
	}
	for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
		char name[4096];
		if (entry->d_name[0] == '.')
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
		run_file(name);
	}
	closedir(folder);
}

int main(int argc, char **argv)
{
	const char *seconds = getenv("FUZZ_SECONDS"), *seed = getenv("FUZZ_SEED");

	for (int i = 1; i < argc; i++)
		run(argv[i]);
	printf("%zu inputs\n", count);
	if (count == 0)
		return 2; /* a corpus that is not there is no success */
	if (seconds)
		mutate_search(kept, count, strtod(seconds, NULL), seed ? strtoull(seed, NULL, 10) : 1);
	while (count)
		free(kept[--count].bytes);
	return 0;
}

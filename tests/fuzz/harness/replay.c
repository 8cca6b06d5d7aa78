/* replay.c - runs a harness over files, or all files of folders: the kept inputs as tests, without libFuzzer. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"

static int run_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	long size = -1;

	if (!file || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0) {
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
	free(bytes);
	return 1;
}

static int run(const char *path)
{
	DIR *folder = opendir(path);
	int count = 0;

	if (!folder)
		return run_file(path);
	for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
		char name[4096];
		if (entry->d_name[0] == '.')
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
		count += run_file(name);
	}
	closedir(folder);
	return count;
}

int main(int argc, char **argv)
{
	int count = 0;

	for (int i = 1; i < argc; i++)
		count += run(argv[i]);
	printf("%d inputs\n", count);
	return count > 0 ? 0 : 2; /* a corpus that is not there is no success */
}

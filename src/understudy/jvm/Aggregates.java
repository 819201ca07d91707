package understudy;

import java.math.BigDecimal;
import java.math.RoundingMode;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;

/**
 * What comes of a column of rows, as {@code windowed/folding.py} has it: told among values that are not null. A sum that its type
 * cannot hold is an {@link ArithmeticException}; what comes up on the way may be larger, so that the order of rows does not matter.
 */
final class Aggregates {
  /** Instead of a column: all rows. */
  static final int ROWS = -1;

  private Aggregates() {}

  static Object of(String function, List<Row> rows, int column, DataType made) {
    return switch (function) {
      case "count" -> count(rows, column);
      case "sum" -> sum(rows, column, made);
      case "mean" -> mean(rows, column, made);
      case "min" -> extreme(rows, column, -1);
      case "max" -> extreme(rows, column, 1);
      case "first" -> first(rows, column, 0, 1);
      case "last" -> first(rows, column, rows.size() - 1, -1);
      default -> throw new IllegalArgumentException(function);
    };
  }

  private static long count(List<Row> rows, int column) {
    long found = 0;
    for (Row row : rows) if (column == ROWS || !row.isNullAt(column)) found++;
    return found;
  }

  private static Object sum(List<Row> rows, int column, DataType made) {
    if (count(rows, column) == 0) return null;
    if (made instanceof DecimalType decimal) {
      BigDecimal found = money(rows, column);
      int room = decimal.precision() - decimal.scale();
      if (found.precision() - found.scale() > room) throw new ArithmeticException();
      return found;
    }
    return made.equals(DataTypes.DoubleType) ? (Object) total(rows, column) : (Object) whole(rows, column);
  }

  private static BigDecimal money(List<Row> rows, int column) {
    BigDecimal found = BigDecimal.ZERO;
    for (Row row : rows) if (!row.isNullAt(column)) found = found.add(row.getDecimal(column));
    return found;
  }

  /** The upper and lower halves are added up apart, where neither sum can be beyond 64 bits. */
  private static long whole(List<Row> rows, int column) {
    long upper = 0, lower = 0;
    for (Row row : rows) {
      if (row.isNullAt(column)) continue;
      long value = number(row.get(column)).longValue();
      upper += value >> 32;
      lower += value & 0xFFFFFFFFL;
    }
    return Math.multiplyExact(upper + (lower >> 32), 1L << 32) + (lower & 0xFFFFFFFFL);
  }

  private static double total(List<Row> rows, int column) {
    double found = 0;
    for (Row row : rows) if (!row.isNullAt(column)) found += number(row.get(column)).doubleValue();
    return found;
  }

  private static Number number(Object value) {
    return value instanceof Boolean flag ? (flag ? 1 : 0) : (Number) value;
  }

  private static Object mean(List<Row> rows, int column, DataType made) {
    long count = count(rows, column);
    if (count == 0) return null;
    if (made instanceof DecimalType decimal) {
      return money(rows, column).divide(BigDecimal.valueOf(count), decimal.scale(), RoundingMode.HALF_UP);
    }
    return total(rows, column) / count;
  }

  private static Object first(List<Row> rows, int column, int from, int step) {
    for (int i = from; i >= 0 && i < rows.size(); i += step) if (!rows.get(i).isNullAt(column)) return rows.get(i).get(column);
    return null;
  }

  private static Object extreme(List<Row> rows, int column, int sign) {
    Object found = null;
    for (Row row : rows) {
      if (!row.isNullAt(column) && (found == null || compared(row.get(column), found) * sign > 0)) found = row.get(column);
    }
    return found;
  }

  /** NaN is larger than any other number, for Java as for Spark. */
  @SuppressWarnings("unchecked")
  private static int compared(Object one, Object other) {
    if (one instanceof String text) { // by code points, as bytes of UTF-8 are ordered; Java's own order is another
      int[] left = text.codePoints().toArray(), right = ((String) other).codePoints().toArray();
      return Arrays.compare(left, right);
    }
    if (one instanceof byte[] bytes) return Arrays.compareUnsigned(bytes, (byte[]) other);
    return ((Comparable<Object>) one).compareTo(other);
  }
}
